"""The report of a run, as a person opens it: finished, interrupted, resumed, or barely begun."""

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from robot_rl import cli
from robot_rl.commands.runs import save_resolved
from robot_rl.config import compose
from robot_rl.data.intervals import interval_over_runs
from robot_rl.evaluation.records import (
    read_run,
)
from robot_rl.evaluation.report import write_report
from robot_rl.evaluation.statistics import EvaluationResult, Labels
from robot_rl.run import RunDirectory, RunError

CONFIG = """\
seed: 3
task:
  name: peg_insert
  clearance: 0.001  # m
algorithm:
  learning_rate: 3.0e-4
choices:
  task: peg_insert
  algorithm: residual
"""
SUMMARY = {
    "task": "peg_insert",
    "algorithm": "residual",
    "seed": 3,
    "mean_seconds_to_success": 2.5,
    "longest_success_run": 100,
    "machine": {"cpu": "a processor", "cores": 2},
    "bc_success_rate": 0.4,
    "rl_success_rate": 0.985,
    "evaluation_episodes": 200,
    "demonstrations": 20,
    "environment_steps": 2000,
    "steps_to_97": 1500,
    "worse_than_start": [],
    "gradient_updates": 6000,
    "taken_by_learner": {
        "discount": 0.985,
        "value_range": [-66.67, 1.0],
        "hindsight_share": 0.8,
        "symmetric_views": 4,
    },
    "wall_seconds": 412.0,
    "peak_memory_bytes": 2 * 2**30,
}


def evaluation(steps, successes, episodes=100, seed_set="periodic", **options):
    result = EvaluationResult.of_episodes(
        [i < successes for i in range(episodes)],
        [2.5] * episodes,
        policy="residual" if steps else "diffusion",
        seed_set=seed_set,
        first_seed=10000,
        environment_steps=steps,
        gradient_updates=3 * steps,
        wall_seconds=4.0,
    )
    return replace(result, **options).to_json()


EVALUATIONS = [
    evaluation(0, 38),
    evaluation(500, 41),
    evaluation(1000, 88),
    evaluation(1500, 97),
    evaluation(2000, 98),
    evaluation(0, 80, 200, seed_set="final"),
    evaluation(2000, 197, 200, seed_set="final", domain="lab light=[1.0, 1.0]"),
]
EPISODES = [
    {"episode": i, "environment_steps": 50 * (i + 1), "success": i > 20, "length": 50,
     "return": 1.0, "policy_version": i, "intervened_steps": 0, "wall_seconds": 1.0}
    for i in range(40)
]  # fmt: skip
LEARNER = [
    {"environment_steps": 100 * i, "gradient_updates": 300 * i, "updates_per_second": 70.0,
     "update_to_data": 3.0, "replay_transitions": 100 * i, "critic_loss": 0.1 / (i + 1),
     "actor_loss": float("nan") if i < 5 else -0.5, "q_mean": 0.02 * i, "q_spread": 0.1,
     "temperature": 0.01, "stored_gradient_noise": 0.3}
    for i in range(20)
]  # fmt: skip


def ledger(**verdicts):
    """Lines of the ledger: what was decided about each policy."""
    solved = {"cloned": 80, "learned": 197}
    common = {"parent": None, "environment_steps": 0, "episodes": 200, "decided_after": 0}
    return lines(
        {
            "policy": name,
            "checkpoint": f"checkpoints/{name}",
            "successes": solved[name],
            "verdict": verdict,
            "why": "the other solved fewer" if verdict == "deployed" else "",
            **common,
        }
        for name, verdict in verdicts.items()
    )


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def write_run(directory):
    """Write the records of a finished run, apart from the learner's."""
    (directory / "config.yaml").write_text(CONFIG)
    (directory / "summary.json").write_text(json.dumps(SUMMARY))
    (directory / "evaluations.jsonl").write_text(lines(EVALUATIONS))
    (directory / "episodes.jsonl").write_text(lines(EPISODES))
    decided = {"cloned": "not deployed", "learned": "deployed"}
    (directory / "policies.jsonl").write_text(ledger(**decided))
    return directory


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The page of a finished run with all its records."""
    directory = write_run(tmp_path_factory.mktemp("run"))
    (directory / "learner.jsonl").write_text(lines(LEARNER))
    fault = {"time": "2026-11-26T14:51:02.282+00:00", "kind": "ArmStopped", "problem": "a reflex"}
    part = {**fault, "kind": "SensorLate", "problem": "too old", "part_of": fault["time"]}
    (directory / "faults.jsonl").write_text(lines([fault, part]))
    attempts = [
        {"time": f"2026-11-27T0{hour}", "success": hour == 1, "interrupted": hour == 3 or None}
        for hour in (1, 2, 3)
    ]
    (directory / "attempts.jsonl").write_text(lines(attempts))
    return Page(write_report(RunDirectory(directory)))


class Page(HTMLParser):
    """The visible words of a page, its tags with attributes, and whether its tags match."""

    def __init__(self, path):
        super().__init__()
        self.words, self.elements, self.open = [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)


def test_the_headline_of_a_finished_run(finished):
    assert "peg_insert · residual" in finished.text
    assert "seed 3, domain lab light=[1.0, 1.0]" in finished.text
    cloned = "40 % not deployed 80 of 200 episodes 95 % interval 33.2 to 47.1 %"
    learned = "98.5 % deployed 197 of 200 episodes 95 % interval 95.7 to 99.7 %"
    assert f"{cloned} → After reinforcement learning {learned}" in finished.text
    assert "deployed: the learned policy (197 of 200) — the other" in finished.text
    assert "Steps to 97 % 1,500" in finished.text
    assert "Wall time 6 min 52 s" in finished.text
    assert "Peak memory 2.00 GiB" in finished.text
    assert "Demonstrations 20" in finished.text
    assert "faults: 1 ArmStopped; the latest" in finished.text
    assert "with it SensorLate: too old" in finished.text
    work = "1 of 2 attempts succeeded, 1 cut by a fault; 2026-11-27T01 to 2026-11-27T03"
    assert f"robot-rl run: {work}" in finished.text
    assert "2026-11-26T14:51:02.282+00:00 ArmStopped: a reflex" in finished.text
    assert finished.open == []


def test_what_learning_has_spoilt_and_what_is_deployed_is_said_first(run):
    decision = "deployed: the cloned policy (80 of 200) — the other solved fewer"
    summary = {**SUMMARY, "worse_than_start": [500]}
    (run / "summary.json").write_text(json.dumps(summary))
    decided = {"learned": "not deployed", "cloned": "deployed"}
    (run / "policies.jsonl").write_text(ledger(**decided))
    text = Page(write_report(RunDirectory(run))).text
    assert "worse than what it began with, by more than noise, after 500 steps" in text
    assert decision in text
    assert text.index("after 500 steps") < text.index(decision) < text.index("Learning curve")


def test_what_was_learned_is_shown_beside_what_was_deployed_while_it_was_held_back(run):
    """It was drawn as the clone, in a line that did not move."""
    curve = [
        evaluation(0, 38, deployed=True),
        evaluation(500, 12, deployed=False),
        evaluation(1000, 88, deployed=False),
        evaluation(1500, 97, deployed=True),
    ]
    (run / "evaluations.jsonl").write_text(lines([*curve, *EVALUATIONS[-2:]]))
    (run / "policies.jsonl").write_text(ledger(learned="held back", cloned="deployed"))
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "worse_than_start": [500]}))
    page = Page(write_report(RunDirectory(run)))
    assert "Training held it back after 500 steps." in page.text
    assert "learned residual, held back 500 1,500 12 / 100 12.0 %" in page.text
    assert "learned residual, held back 1,000 3,000 88 / 100 88.0 %" in page.text
    assert "learned residual 1,500 4,500 97 / 100" in page.text
    assert "learned residual, final, held back 2,000" in page.text
    assert "cloned diffusion, final, deployed 0 0 80 / 200" in page.text
    assert "deployed meanwhile" in page.text  # in the learning curve
    assert "· After reinforcement learning 98.5 % held back" in page.text  # no arrow leads there
    records = read_run(RunDirectory(run))
    rates = [(e.environment_steps, e.success_rate) for e in records.deployed_curve()]
    assert rates == [(500, 0.38), (1000, 0.38), (1500, 0.97)]
    assert [e.success_rate for e in records.learned_curve()] == [0.12, 0.88, 0.97]


def test_attempts_and_labels_of_people_are_told(run):
    asked = {"made_again": {"discard": 2}, "operated": 1, "labels": Labels(90, 3, 1, (4,))}
    (run / "evaluations.jsonl").write_text(lines([evaluation(1500, 90, **asked)]))
    ended = [{"ended_by": "pause"}, {"ended_by": None, "interrupted": "no measurement"}]
    said = [{"operator_success": True, "detector_success": False}, {"operator_success": None}]
    episodes = [{"environment_steps": n, **e} for n, e in enumerate([*ended, *said])]
    (run / "episodes.jsonl").write_text(lines(episodes))
    text = Page(write_report(RunDirectory(run))).text
    assert "after 1,500 steps: 2 attempts made again (2 discard), the operator drove in 1" in text
    assert "judged 4 episodes, 1 of them otherwise than the detector (first numbers 4)" in text
    assert "training: 1 episodes ended by pause, 1 episodes ended by cut, the operator" in text


def test_a_policy_without_an_update_has_not_learned(run):
    """As of a run that was stopped in its warm-up."""
    warming = evaluation(50, 37, gradient_updates=0)
    (run / "evaluations.jsonl").write_text(lines([evaluation(0, 38), warming]))
    (run / "policies.jsonl").unlink()
    text = Page(write_report(RunDirectory(run))).text
    assert "Cloned from demonstrations 38 % 38 of 100 episodes" in text
    assert "After reinforcement learning – not evaluated" in text


def test_the_configuration_is_shown_in_full(finished):
    assert html.escape(CONFIG) in finished.source


def test_what_the_learner_has_found_out_stands_beside_it(finished, run):
    assert "Discount per step 0.985" in finished.text
    assert "Range of values -66.67 to 1" in finished.text
    assert "In hindsight 80 % of each batch" in finished.text
    taken = {"discount": 0.97, "value_range": None, "hindsight_share": 0.0, "symmetric_views": 1}
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "taken_by_learner": taken}))
    text = Page(write_report(RunDirectory(run))).text
    assert "Range of values no limits In hindsight 0 % of each batch" in text


def test_each_evaluation_is_a_row_of_the_table(finished):
    assert [tag for tag, _ in finished.elements].count("tr") == 1 + len(EVALUATIONS)
    assert "cloned diffusion, final, not deployed 0 0 80 / 200 40.0 %" in finished.text
    assert "learned residual 1,500 4,500 97 / 100 97.0 % 91.5 to 99.4 %" in finished.text


def test_every_metric_of_the_learner_has_a_chart(finished):
    for title in ("Critic loss", "Actor loss", "Q values", "Temperature", "Update to data",
                  "Stored gradient noise", "Mean time to success"):  # fmt: skip
        assert title in finished.text
    assert "Q mean" in finished.text
    assert "Q spread" in finished.text


def test_the_page_needs_no_network_and_no_script(finished):
    tags = {tag for tag, _ in finished.elements}
    assert not tags & {"script", "link", "iframe", "img", "object", "image"}
    for _, attributes in finished.elements:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "@import" not in finished.source
    assert not re.search(r"url\((?!#)", finished.source)


def test_drawings_in_one_page_do_not_share_identifiers(finished):
    for reference in set(re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"', finished.source)):
        identifier = "".join(reference)
        assert finished.source.count(f'id="{identifier}"') == 1, identifier


def test_what_a_killed_process_left_unfinished_is_left_out(run):
    for name in ("evaluations", "episodes", "learner"):
        with (run / f"{name}.jsonl").open("a") as file:
            file.write('{"environment_steps": 25')
    page = Page(write_report(RunDirectory(run)))
    assert "98.5 % deployed 197 of 200" in page.text
    assert "Steps to 97 % 1,500" in page.text
    assert "Environment steps 2,000" in page.text


def test_before_the_final_evaluation_the_last_periodic_one_counts(run):
    (run / "evaluations.jsonl").write_text(lines(EVALUATIONS[:3]))
    (run / "policies.jsonl").unlink()
    page = Page(write_report(RunDirectory(run)))
    assert "38 % 38 of 100 episodes (periodic)" in page.text
    assert "88 % 88 of 100 episodes (periodic)" in page.text


def test_a_run_that_has_learned_nothing_has_a_report(run):
    for name in ("evaluations", "episodes"):
        (run / f"{name}.jsonl").unlink()
    facts = {"steps_to_97": None, "mean_seconds_to_success": None}
    (run / "summary.json").write_text(json.dumps({**SUMMARY, **facts}))
    text = Page(write_report(RunDirectory(run))).text
    assert "There are no evaluations or training episodes yet" in text
    assert "Steps to 97 % not measured" in text


def test_a_run_that_only_gathered_says_how_much(run):
    for name in ("evaluations", "episodes"):
        (run / f"{name}.jsonl").unlink()
    facts = {"steps_to_97": None, "environment_steps": 0, "gathered_steps": 8324}
    (run / "summary.json").write_text(json.dumps({**SUMMARY, **facts}))
    text = Page(write_report(RunDirectory(run))).text
    assert "Gathered steps 8,324" in text
    assert "learns from 8,324 steps that its stages have gathered" in text


def test_a_run_without_periodic_evaluations_says_what_was_not_measured(run):
    """As on a real robot, where the clone is not compared either."""
    (run / "evaluations.jsonl").write_text(lines([EVALUATIONS[-1]]))
    (run / "policies.jsonl").unlink()
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "steps_to_97": None}))
    text = Page(write_report(RunDirectory(run))).text
    assert "Cloned from demonstrations – not evaluated → After" in text
    assert "Steps to 97 % not measured" in text
    assert "No checkpoint was evaluated while this run learned. Grey:" in text


def test_a_rate_that_was_looked_for_is_said_to_be_missed(run):
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "steps_to_97": None}))
    assert "Steps to 97 % not reached" in Page(write_report(RunDirectory(run))).text


def test_text_of_the_configuration_is_no_markup(run):
    (run / "config.yaml").write_text("task: '<script>alert(1)</script>'\n")
    assert "script" not in {tag for tag, _ in Page(write_report(RunDirectory(run))).elements}


def test_a_second_report_replaces_the_first(run):
    first = write_report(RunDirectory(run))
    (run / "config.yaml").write_text(CONFIG + "note: second\n")
    assert write_report(RunDirectory(run)) == first
    assert "note: second" in first.read_text(encoding="utf-8")
    assert not list(run.glob(".*partial"))


@pytest.mark.parametrize("line", ['{"a": 2', '{"a": 2} {"a": 3}', "[4]", ""])
def test_a_damaged_line_is_named(run, line):
    with (run / "episodes.jsonl").open("a") as file:
        file.write(f"{line}\n{json.dumps(EPISODES[-1])}\n")
    with pytest.raises(RunError, match=r"episodes\.jsonl, line 41, is not"):
        write_report(RunDirectory(run))


def test_episodes_of_several_actors_are_in_the_order_of_their_steps(tmp_path):
    ends = [(1, 1000), (2, 1012), (1, 1010), (2, 1030), (1, 1050)]
    lines = [json.dumps({"actor": actor, "environment_steps": at}) for actor, at in ends]
    (tmp_path / "episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    episodes = read_run(RunDirectory(tmp_path)).episodes
    assert [e["environment_steps"] for e in episodes] == [1000, 1010, 1012, 1030, 1050]


def trained(path, *words, final=True, first_seed=20000, successes=198):
    """A run that has trained, and been evaluated at its end."""
    path.mkdir()
    save_resolved(compose(["task=reach", *words]), path)
    results = [evaluation(0, 30), evaluation(500, 90)]
    if final:
        results += [evaluation(500, successes, 200, "final", first_seed=first_seed)]
    (path / "evaluations.jsonl").write_text(lines(results))
    return str(path)


def test_runs_that_differ_in_their_training_seed_are_summarised_together(tmp_path, capsys):
    three = [
        trained(tmp_path / str(n), f"seed={n}", first_seed=1000 * n, successes=s)
        for n, s in ((1, 200), (2, 198), (3, 199))
    ]
    assert cli.main(["inspect", *three]) == 0
    page = capsys.readouterr().out
    assert f"seed 2, {three[1]}: final, 198/200 = 99.0 % (95 % interval 96.4" in page
    low, high = interval_over_runs([1.0, 0.99, 0.995])
    assert (
        "together 597 of 600, by run 99.0 to 100.0 %, mean 99.5 %; expected rate of a further"
        f" training seed on further scenes: 95 % interval {100 * low:.0f} to {100 * high:.0f} %"
    ) in page
    assert cli.main(["inspect", *three, "json=true"]) == 0
    learned = json.loads(capsys.readouterr().out)["policies"]["learned"]
    assert learned["interval"] == [low, high]
    assert low < 0.3  # three seeds say little
    same = trained(tmp_path / "4", "seed=4", first_seed=1050)
    assert cli.main(["inspect", three[0], same]) == 0
    assert "seed on these scenes, which they share: 95 %" in capsys.readouterr().out
    going_on = trained(tmp_path / "5", "seed=5", final=False)
    assert cli.main(["inspect", three[0], going_on]) == 0
    page = capsys.readouterr().out
    assert f"{going_on}: periodic, 90/100" in page
    for run in three[:2]:
        (tmp_path / run / "evaluations.jsonl").unlink()
    assert cli.main(["inspect", *three[:2]]) == 0
    assert capsys.readouterr().out.count("not evaluated yet") == 4
    assert "together" not in page


def test_a_run_that_learned_without_actors_can_be_inspected(tmp_path, capsys):
    run = trained(tmp_path / "run")
    records = {"environment_steps": 7724, "gradient_updates": 5, "value_loss": 0.1}
    (tmp_path / "run/learner.jsonl").write_text(lines([records]))
    assert cli.main(["inspect", run]) == 0
    page = capsys.readouterr().out
    assert "final, " in page
    assert "environment steps 7" not in page


def test_runs_that_are_no_repetitions_are_not_summarised_together(tmp_path, capsys):
    one = trained(tmp_path / "1", "seed=1")
    for words, told in (
        (["seed=1"], "runs of one training seed say nothing of another; got: [1, 1]"),
        (["seed=2", "algorithm=rlpd"], "differs in algorithm; got: algorithm=rlpd; expected: alg"),
    ):
        other = trained(tmp_path / words[-1], *words)
        assert cli.main(["inspect", one, other]) == cli.EXIT_ERROR
        assert told in capsys.readouterr().err
