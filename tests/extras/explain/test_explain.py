"""`robot-rl explain`: the causes that it names for recordings in which one thing is wrong."""

from __future__ import annotations

import ast
import inspect
import json
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_runs import RunServer

from robot_rl import cli
from robot_rl.commands.runs import save_resolved
from robot_rl.config import Settings, compose, composed, flatten
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.evaluation.ledger import enter
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.extras.explain import course_causes, motion_causes, reward_causes, sensing_causes
from robot_rl.extras.explain.evidence import Cause
from robot_rl.extras.explain.explain import explain, settings_named
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.stages.decide import decide
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.client import ReplayClient
from robot_rl.run import RunDirectory

POSE = "state/tcp_pose"


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Demonstrations of `reach` by its expert: the configuration and the episodes."""
    folder = str(tmp_path_factory.mktemp("recording"))
    config = compose(["task=reach", "demonstrations=12", f"runs_directory={folder}"])
    run = RunDirectory.create("reach", folder)
    Collect(settings := Settings.of(config)).run(Workbench(settings, run))
    dataset = EpisodeDataset(run.demonstrations)
    return config, dataset.schema, [dataset.whole(index) for index in range(len(dataset))]


def made_run(tmp_path, recording, shown=None, acted=None):
    """A run whose demonstrations were changed by `shown`, and the policy's episodes by `acted`."""
    config, schema, episodes = recording
    run = RunDirectory.create("reach", tmp_path)
    save_resolved(config, run.path)
    with EpisodeWriter(run.demonstrations, schema) as writer:
        writer.extend([e if shown is None else changed(e, shown) for e in episodes])
    if acted is not None:
        store(run, schema, [changed(e, acted) for e in episodes])
    return run.path


def gather_instead(path, recording, successes):
    """Give it what rounds leave, in place of a store; the gate has seen so many successes."""
    run = RunDirectory(path)
    with EpisodeWriter(run.gathered, recording[1]) as writer:
        writer.extend(recording[2])
    figures = {"pairs": 5, "candidate_successes": successes, "accepted_successes": 0}
    figures |= {"won": successes, "lost": 0}
    for number in (1, 2):
        verdict = {"candidate": f"checkpoints/round_{number}", "decision": "undecided"}
        verdict |= {"reason": "neither has done better", "figures": figures}
        run.append_jsonl("gate", verdict)


def changed(episode, change):
    rows = episode.rows.copy()
    change(rows)
    return type(episode)(rows, episode.seed, "", episode.success, episode.source)


def store(run, schema, episodes):
    with closing(RunServer(run.path)), ReplayClient(run.store) as client:
        client.open_session(schema, 1)
        for episode in episodes:
            episode.rows["source"] = SOURCE_POLICY
            rows = [{f.name: row[f.name] for f in schema.fields} for row in episode.rows]
            client.append_episode(rows, {"task": schema.task, "seed": episode.seed})
        client.flush()


def explained(capsys, path):
    assert cli.main(["explain", str(path), "json=true"]) == 0
    said = json.loads(capsys.readouterr().out)
    return [cause["name"] for cause in said["causes"]], said


def as_it_was(rows):
    pass


def scalar_first(rows):
    rows[POSE] = rows[POSE][:, [0, 1, 2, 6, 3, 4, 5]]


def in_millimetres(rows):
    rows[POSE][:, :3] *= 1000.0


def punished(rows):
    rows["reward"] *= -1.0


def inverted(rows):
    rows["action"][:, 1] *= -1.0


def exchanged(rows):
    rows["action"][:, [0, 2]] = rows["action"][:, [2, 0]]


def late(rows):
    rows["action"][:-4], rows["action"][-4:] = rows["action"][3:-1].copy(), 0.0


def held_up(rows, share=0.7):
    start = rows[POSE][0, :3].copy()
    rows[POSE][:, :3] = start + share * (rows[POSE][:, :3] - start)


def held_up_more(rows):
    held_up(rows, 0.5)


def small(rows):
    held_up(rows, 0.2)


def unlabelled(rows):
    rows["reward"], rows["success"], rows["terminated"] = 0.0, False, False
    rows["truncated"][-2] = True


def raised(rows, height=0.5):
    """One observation is small until late in the episode."""
    rows["state/target_lead"] = 1e-3
    rows["state/target_lead"][-len(rows) // 4 :] = height


def hardly_raised(rows):
    raised(rows, 1e-3)


def stuck(rows):
    rows["state/relative_pose"] = rows["state/relative_pose"][0]


def trembling(rows):
    rng = np.random.default_rng(0)
    rows["state/relative_pose"] += rng.normal(0.0, 0.03, rows["state/relative_pose"].shape)


def beside(rows):
    rows[POSE][:, 1] += 0.2


WRONG = {
    scalar_first: "quaternion",
    in_millimetres: "unit",
    punished: "reward sign",
    inverted: "action sign",
    exchanged: "action columns",
    small: "action scale",
}
ACTED = WRONG | {
    late: "delay",
    unlabelled: "label missing",
    stuck: "observation constant",
    trembling: "noise",
    beside: "demonstrations elsewhere",
}


@pytest.mark.parametrize("change", WRONG)
def test_what_is_wrong_with_demonstrations_is_named_first(tmp_path, recording, capsys, change):
    causes, _ = explained(capsys, made_run(tmp_path, recording, change))
    assert causes[0] == WRONG[change]


@pytest.mark.parametrize("change", ACTED)
def test_what_is_wrong_since_is_named_first(tmp_path, recording, capsys, change):
    causes, _ = explained(capsys, made_run(tmp_path, recording, None, change))
    assert causes[0] == ACTED[change]


def test_a_healthy_run_has_no_cause_and_says_what_is_in_order(tmp_path, recording, capsys):
    path = made_run(tmp_path, recording, None, as_it_was)
    causes, said = explained(capsys, path)
    assert causes == []
    assert {"unit", "quaternion", "action sign", "labels"} <= {f["name"] for f in said["in_order"]}
    assert cli.main(["explain", str(path)]) == 0
    page = capsys.readouterr().out
    assert "no cause was found" in page
    assert "  delay: in the demonstrations half of a motion has come " in page


def test_what_rounds_have_gathered_and_their_gate_are_looked_at(tmp_path, recording, capsys):
    path = made_run(tmp_path, recording)
    gather_instead(path, recording, successes=2)
    assert cli.main(["explain", "latest", f"runs_directory={tmp_path}"]) == 0
    page = capsys.readouterr().out
    assert "environment steps gathered by the recipe's stages, of which the policy's" in page
    assert "1. candidates: a gate has accepted 0 of 2; of the latest: neither" in page
    assert "next: more pairs (gate.pairs)" in page
    assert "found in order:\n" in page
    assert "  action sign: in the policy's episodes" in page


def test_a_gate_that_saw_no_success_is_not_the_cause(tmp_path, recording, capsys):
    path = made_run(tmp_path, recording)
    gather_instead(path, recording, successes=0)
    causes, said = explained(capsys, path)
    assert "candidates" not in causes
    assert "candidates" in [finding["name"] for finding in said["in_order"]]


def measured(run, seed_set="final", **successes):
    """Give a run its evaluations, of 20 episodes each; returns them by policy."""
    steps = {"cloned": 0, "accepted": 300, "learned": 500}
    results = {}
    for name, count in successes.items():
        made = {"environment_steps": steps[name], "gradient_updates": steps[name]}
        results[name] = EvaluationResult.of_episodes(
            [n < count for n in range(20)],
            [2.0] * 20,
            policy="diffusion",
            policy_name=name,
            seed_set=seed_set,
            first_seed=1,
            wall_seconds=4.0,
            **made,
        )
        run.append_jsonl("evaluations", results[name].to_json())
    return results


def configured(path, *words):
    """Give a run these settings."""
    run = RunDirectory(path)
    save_resolved(compose(["task=reach", "demonstrations=12", *words]), run.path)
    return run


def test_a_setting_far_from_its_default_is_named_where_nothing_succeeds(
    tmp_path, recording, capsys
):
    words = ("cloning.updates=5", "algorithm.settings.actor_rate=1")
    run = configured(made_run(tmp_path, recording, None, as_it_was), *words)
    assert "settings" not in explained(capsys, run.path)[0]
    measured(run, cloned=0)
    causes, said = explained(capsys, run.path)
    assert causes[0] == "settings"
    figure = said["causes"][0]["figure"]
    assert "cloning.updates=5 (1/600 of the default, 3000)" in figure
    assert "algorithm.settings.actor_rate=1.0 (3,333 times the default, 0.0003)" in figure


def test_demonstrations_of_another_domain_are_named_where_the_clone_fails(
    tmp_path, recording, capsys
):
    shown = configured(made_run(tmp_path / "shown", recording), "domain=ideal")
    words = ("domain=harsh", f"dataset={shown.demonstrations}")
    run = configured(made_run(tmp_path / "run", recording, None, as_it_was), *words)
    measured(run, cloned=0)
    causes, said = explained(capsys, run.path)
    assert causes[0] == "conditions"
    assert "choices.domain ideal, now harsh" in said["causes"][0]["figure"]


def test_what_a_gate_accepted_though_it_is_worse_is_named(tmp_path, recording, capsys):
    run = RunDirectory(made_run(tmp_path, recording))
    gather_instead(run.path, recording, successes=2)
    measured(run, cloned=15, accepted=3, learned=4)
    causes, said = explained(capsys, run.path)
    assert causes[0] == "candidates"
    figure = said["causes"][0]["figure"]
    assert figure.startswith("a gate has accepted a worse policy: the accepted policy (diffusion)")


def test_what_never_happened_is_no_other_unit(tmp_path, recording, capsys):
    """The policy stays where it began, so that one of its observations is next to nothing."""
    path = made_run(tmp_path, recording, raised, hardly_raised)
    causes, said = explained(capsys, path)
    assert "unit" not in causes
    assert "unit" in [finding["name"] for finding in said["in_order"]]


def test_a_learned_policy_that_solves_fewer_scenes_than_its_clone_is_named(
    tmp_path, recording, capsys
):
    run = RunDirectory(made_run(tmp_path, recording, None, as_it_was))
    measured(run, cloned=8, learned=7)
    assert "learned policy" not in explained(capsys, run.path)[0]
    measured(run, cloned=16, learned=4)
    causes, said = explained(capsys, run.path)
    assert causes == ["learned policy"]
    assert "solves 4 of 20 final scenes, the clone 16 of 20" in said["causes"][0]["figure"]


def test_before_its_final_evaluation_a_run_is_judged_on_the_periodic_scenes(
    tmp_path, recording, capsys
):
    """The clone was compared with itself, as it had acted in place of what was held back."""
    run = RunDirectory(made_run(tmp_path, recording, None, as_it_was))
    measured(run, "periodic", cloned=16, learned=4)
    causes, said = explained(capsys, run.path)
    assert causes == ["learned policy"]
    figure = "after 500 steps solves 4 of 20 periodic scenes, the clone 16 of 20"
    assert figure in said["causes"][0]["figure"]
    measured(run, cloned=16)  # the final evaluation has begun, with the clone
    assert figure in explained(capsys, run.path)[1]["causes"][0]["figure"]


def test_success_that_does_not_end_an_episode_counts_from_when_it_comes(
    tmp_path, recording, capsys
):
    """As learning counts it; their length is that of the time limit."""
    _, schema, episodes = recording
    run = RunDirectory.create("reach", tmp_path)
    configured(run.path, "algorithm.schedule.discount=0.97")
    with EpisodeWriter(run.demonstrations, schema) as writer:
        writer.extend([going_on(episode) for episode in episodes])
    causes, said = explained(capsys, run.path)
    assert {"discount", "time limit"}.isdisjoint(causes)
    (figure,) = (f["figure"] for f in said["in_order"] if f["name"] == "discount")
    steps = int(figure.split("a success in ")[1].split()[0])
    lengths = [len(episode.rows) for episode in episodes]
    assert min(lengths) - 1 <= steps <= max(lengths)


def going_on(episode):
    """The episode, which lasts for 400 steps more in the place where it succeeded."""
    rows = np.concatenate(
        [episode.rows[:-1], np.repeat(episode.rows[-2:-1], 400), episode.rows[-1:]]
    )
    rows["success"][len(episode.rows) - 2 :] = True
    rows["terminated"] = False
    return type(episode)(rows, episode.seed, "", episode.success, episode.source)


def saturated(rows):
    rows["action"][:-1] = np.where(rows["action"][:-1] >= 0, 1.0, -1.0)


@pytest.mark.parametrize("robot", ["sim", "gym"])
def test_advice_names_only_settings_that_the_robot_takes(tmp_path, recording, capsys, robot):
    path = made_run(tmp_path, recording, saturated)
    save_resolved(compose([f"robot={robot}", "demonstrations=12"]), path)
    _, said = explained(capsys, path)
    (advice,) = (c["fix"] for c in said["causes"] if c["name"] == "actions saturated")
    assert advice.startswith("demonstrate more slowly; or ")
    assert ("robot.limits.translation_step" in advice) == (robot == "sim")
    assert ("robot.action_scale" in advice) == (robot == "gym")


CONFIGURATIONS = [
    *(f"robot={name}" for name in ("sim", "gym", "ros_sim", "ros_sim_joints")),
    *(f"algorithm={name}" for name in ("sac", "best_of_n", "dsrl", "filtered_cloning")),
    "recipe=rl100",
    "observation=pixels",
]
MODULES = (course_causes, motion_causes, reward_causes, sensing_causes)


def pieces_of_advice(config):
    """Every text of the checks that names a setting."""
    for module in MODULES:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            text = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(p.value if isinstance(p, ast.Constant) else "1" for p in node.values)
            if settings_named(text, config):
                yield text


def test_every_piece_of_advice_names_settings_that_the_configuration_has():
    configs = {words: composed([words]) for words in CONFIGURATIONS}
    known = {words: set(flatten(config)) for words, config in configs.items()}
    default = composed([])
    advice = set(pieces_of_advice(default))
    assert len(advice) > 10

    def there(key, keys):
        start = f"{key.rstrip('*')}{'' if key.endswith('*') else '.'}"
        return key in keys or any(each.startswith(start) for each in keys)

    for text in advice:
        for key in settings_named(text, default):
            assert any(there(key, keys) for keys in known.values()), (key, text)
    for words, keys in known.items():
        config = configs[words]
        checks = [lambda _, text=text: Cause("it", 0.9, "figure", text) for text in advice]
        causes, _ = explain(SimpleNamespace(config=config), checks)
        assert len(causes) == len(advice)
        for cause in causes:
            for key in settings_named(cause.fix, config):
                assert there(key, keys), (words, key, cause.fix)


def test_few_episodes_near_the_goal_without_success_are_no_wrong_labels(
    tmp_path, recording, capsys
):
    """Of two such episodes it may be chance."""
    _, schema, episodes = recording
    unlabelled_ones = [changed(each, unlabelled) for each in episodes]
    elsewhere = [changed(each, stuck) for each in unlabelled_ones]
    found = {}
    for count in (2, 6):
        run = RunDirectory(made_run(tmp_path / str(count), recording))
        store(run, schema, unlabelled_ones[:count] + elsewhere[count:])
        found[count] = "label missing" in explained(capsys, run.path)[0]
    assert found == {2: False, 6: True}


def test_motion_that_demonstrations_have_too_is_no_cause_and_learning_comes_first(
    tmp_path, recording, capsys
):
    path = made_run(tmp_path, recording, held_up, held_up_more)
    causes, _ = explained(capsys, path)
    assert causes == []
    run = RunDirectory(path)
    enter(run, decide(run, measured(run, learned=20)))
    assert cli.main(["explain", str(path)]) == 0
    assert "deployed: the learned policy (20 of 20)" in capsys.readouterr().out.splitlines()[2]


def test_a_policy_that_improved_until_its_steps_were_over_is_named(tmp_path, recording, capsys):
    run = RunDirectory(made_run(tmp_path, recording, None, as_it_was))
    for number in range(40):
        success = (number % 4 > 0) == (number >= 20)  # 5 of 20, then 15 of 20
        told = {"environment_steps": 200 * (number + 1), "success": success}
        run.append_jsonl("episodes", {"actor": 1, "episode": number, "length": 200, **told})
    causes, said = explained(capsys, run.path)
    assert causes == ["steps few"]
    figure = said["causes"][0]["figure"]
    assert figure.startswith("of the last 20 episodes in its 8,000 steps 15 succeeded")
    assert "environment_steps=16000" in said["causes"][0]["fix"]


def test_a_run_without_anything_says_so(tmp_path, recording, capsys):
    run = RunDirectory.create("reach", tmp_path)
    save_resolved(recording[0], run.path)
    assert cli.main(["explain", str(run.path)]) == 0
    assert "nothing is recorded yet" in capsys.readouterr().out
    assert cli.main(["explain", str(tmp_path / "none")]) == cli.EXIT_ERROR
    assert "there is no run" in capsys.readouterr().err
