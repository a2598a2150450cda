"""The commands of `robot-rl`: what each does, reads and accepts.

Functions are given by name, not imported, so that help and errors do not wait for torch.
"""

from __future__ import annotations

from robot_rl.plugins import Command, Option, added

# For commands that read runs without a configuration.
RUNS = Option("runs_directory", "folder of all runs", "runs")
_PROOF = {
    name: f"proof.{name}" for name in ("confidence", "seed", "scenes", "score", "claim", "episodes")
}


def _dataset_formats() -> tuple[str, ...]:
    return ("zarr", *added("dataset_formats"))


_ARMS = ("ur", "franka", "xarm", "topics")
_REWARDS = ("human", "pose", "classifier", "task")

COMMANDS: dict[str, Command] = {
    "collect": Command(
        "robot_rl.commands.train:collect",
        "Record demonstrations with the task's scripted expert.",
        "Records until `demonstrations` episodes have succeeded by the configured reward, into"
        " demonstrations.zarr of a new run. An interrupted recording keeps all finished episodes;"
        " RUN continues it.",
        default_run=None,
        dry_run="robot_rl.commands.plan:collect",
        keys="cell task robot domain teleop observation reward seed demonstrations"
        " recording.wait_for_start recording.countdown_s recording.undo_s recording.keep_failures"
        " control_rate_hz clock start_nodes run runs_directory",
    ),
    "collect-reward": Command(
        "robot_rl.commands.train:collect_reward",
        "Record frames of success and of failure for a success classifier.",
        "The task's scripted expert succeeds, and fails on purpose in several ways; the policy of"
        " RUN, if it has one, adds its own failures. The task's detector gives the labels. Writes"
        " reward.zarr of a new run, or adds to that of RUN.",
        default_run=None,
        keys="cell task robot operator teleop seed classifier.collection.labels"
        " classifier.collection.positive_frames classifier.collection.negative_episodes"
        " classifier.collection.frames_after_success classifier.collection.reaction_s"
        " start_nodes run runs_directory",
    ),
    "train-reward": Command(
        "robot_rl.commands.train:train_reward",
        "Train a success classifier on recorded frames and say how far to trust it.",
        "Chooses calibration and threshold on episodes held out, and writes checkpoints/reward,"
        " reward.json and reward.html in the run with the examples; classifier.test=PATH names a"
        " recording to test it on. Then robot-rl train reward=classifier"
        " reward.source.path=RUN/checkpoints/reward.",
        keys="classifier.test classifier.consecutive_frames classifier.training.updates"
        " classifier.training.batch_size classifier.training.learning_rate"
        " classifier.training.validation_share classifier.training.false_positive_frames"
        " classifier.training.false_positive_episodes device run runs_directory",
    ),
    "pretrain": Command(
        "robot_rl.commands.train:pretrain",
        "Clone the demonstrations into a policy.",
        "Trains on the demonstrations of RUN, the latest by default, or on `dataset=PATH` in a new"
        " run, and writes checkpoints/bc. Then robot-rl train resume=RUN learns online.",
        keys="task policy observation seed dataset cloning.updates cloning.batch_size"
        " cloning.learning_rate cloning.bf16 policy.horizon policy.observation_steps"
        " execute_steps dagger.rounds dagger.episodes device run runs_directory",
    ),
    "train": Command(
        "robot_rl.commands.train:run",
        "The whole pipeline: the stages of a recipe, evaluation, report.",
        "recipe=residual collects demonstrations, clones them and learns online, with replay"
        " server, actor and learner as processes of their own. At the end it decides whether the"
        " cloned or the learned policy is deployed, and writes summary.json and report.html in"
        " runs/<task>/<time>; runs/latest points there. Ctrl-C saves data and checkpoint and stops;"
        " resume=RUN, or RUN, continues at the interrupted stage.",
        run_key="resume",
        default_run=None,
        dry_run="robot_rl.commands.plan:train",
        keys="cell task robot domain policy algorithm observation operator teleop reset reward"
        " seed demonstrations dataset recipe environment_steps evaluation.final_episodes device"
        " console.open resume",
    ),
    "distil": Command(
        "robot_rl.commands.train:distil",
        "Teach the deployed policy to a student that acts several times as fast.",
        "For a diffusion or flow policy: the student needs one call of the network for a chunk, and"
        " learns to give the chunks of the deployed policy on all that RUN has observed. Nothing"
        " moves. Writes checkpoints/student. Then robot-rl evaluate RUN evaluation.policy=student"
        " measures both on the same scenes.",
        keys="distil.updates distil.batch_size distil.learning_rate distil.warm_up device run"
        " runs_directory",
    ),
    "replay": Command(
        "robot_rl.replay.server:run",
        "The replay server of a run, alone.",
        "The only writer of the run's store, and the mailbox of weights.",
        keys="replay replay.address replay.keys replay.fsync"
        " replay.capacity_rows run runs_directory",
    ),
    "actor": Command(
        "robot_rl.actor:run",
        "The actor of a run, alone: steps the robot with the newest policy.",
        "Sends every transition to the replay server and takes new weights from it.",
        keys="operator teleop actor actors device environment_steps start_nodes replay.connect"
        " replay.keys replay.spool_bytes run runs_directory",
    ),
    "learner": Command(
        "robot_rl.learner:run",
        "The learner of a run, alone: updates the policy from the store.",
        "Reads the store through its memory map and publishes weights to the replay server.",
        keys="environment_steps device evaluation.every_steps replay.connect replay.keys"
        " replay.capacity_rows run runs_directory",
    ),
    "evaluate": Command(
        "robot_rl.commands.evaluate:run",
        "Measure the success rate of a run's policy.",
        "The policy is the one that `train` has decided to deploy, or evaluation.policy; a student"
        " is measured beside the deployed one. RUN may be a checkpoint or an exported policy, and"
        " is the latest run by default. Runs seeded episodes that training never used; prints the"
        " success rate with its exact 95 % interval, the mean time to success and the longest run"
        " of successes, and adds a line of JSON to RUN/evaluate.jsonl. robot=NAME, domain=NAME and"
        " parameters such as task.environment.time_limit_steps=50 test it outside of its training.",
        measures=True,
        arguments=("[RUN]",),
        keys="episodes seed evaluation.policy evaluation.videos evaluation.slots cell robot domain"
        " teleop device start_nodes run runs_directory",
        aliases={"episodes": "evaluation.final_episodes", "seed": "evaluation.final_seed"},
    ),
    "compare": Command(
        "robot_rl.commands.compare:run",
        "Find out which policy is better, in as few scenes as possible.",
        "A, B and more are runs or checkpoints for one task; all are compared with A. In each scene"
        " they act one after another in a drawn order, and nothing says which one acts. An exact"
        " test after each scene ends the comparison as soon as the answer is known: it errs for"
        " equally good policies with probability 1 - confidence at most. Adds a line for each of B"
        " and more to compare.jsonl in the run of A.",
        measures=True,
        arguments=("A", "B", "..."),
        keys="confidence scenes seed score evaluation.policy evaluation.slots robot teleop device"
        " start_nodes runs_directory",
        aliases=_PROOF,
        example="robot-rl compare runs/latest/checkpoints/bc runs/latest",
    ),
    "certify": Command(
        "robot_rl.commands.evaluate:certify",
        "Prove that a policy's success rate is as high as you claim.",
        "RUN is a run or a checkpoint. Says how many episodes the claim needs, and how many may"
        " fail; runs them, and ends early where more fail. Adds a line with the exact lower bound"
        " to RUN/evaluate.jsonl.",
        measures=True,
        arguments=("RUN",),
        keys="claim confidence episodes seed evaluation.policy evaluation.slots robot teleop device"
        " start_nodes runs_directory",
        aliases=_PROOF,
        example="robot-rl certify runs/latest claim=0.99",
    ),
    "run": Command(
        "robot_rl.commands.deployment:run",
        "Put a run's policy to work: attempt after attempt, with counters.",
        "The policy is the one that `train` has decided to deploy, or evaluation.policy; RUN may be"
        " an exported policy. After most_failures attempts in a row that failed, or were cut by a"
        " fault, the robot holds until a person says `start`. The reward of the training says what"
        " succeeded. Each attempt adds a line to RUN/attempts.jsonl, each fault one to"
        " RUN/faults.jsonl. Ctrl-C ends it, with the robot at rest.",
        measures=True,
        arguments=("[RUN]",),
        keys="episodes most_failures evaluation.policy robot domain teleop clock device start_nodes"
        " run runs_directory",
        aliases={name: f"deployment.{name}" for name in ("episodes", "most_failures")},
    ),
    "inspect": Command(
        "robot_rl.commands.inspection:run",
        "Say what a dataset, store, checkpoint or run holds, or several runs together.",
        "PATH is a demonstrations.zarr, a store, a checkpoint or a run. Several runs that differ in"
        " their training seed are summarised together: what to expect of a further one, with an"
        " interval over random seeds and scenes. Nothing is changed, except by rebuild.",
        arguments=("PATH", "..."),
        options=(
            Option("json", "one JSON object in its place", False),
            Option("rebuild", "rebuild the catalogue of a store first", False),
            RUNS,
        ),
        example="robot-rl inspect runs/latest",
    ),
    "export": Command(
        "robot_rl.commands.export:export",
        "Write the episodes of a store to a dataset, also while training runs.",
        "STORE is a store, a run or an episode dataset; OUT is never overwritten. Open episodes are"
        " left out. LeRobot datasets have no final observation and lossy pictures; zarr keeps"
        " everything.",
        arguments=("STORE", "OUT"),
        options=(
            Option("format", "the dataset's format", "zarr", _dataset_formats),
            Option(
                "source",
                "who acted; intervention takes episodes in which somebody intervened",
                "all",
                ("demo", "policy", "intervention", "all"),
            ),
            Option("success", "by outcome", "all", ("true", "false", "all")),
        ),
        example="robot-rl export runs/latest OUT format=lerobot",
    ),
    "keys": Command(
        "robot_rl.wire.keys:make_keys",
        "Make the keys with which other machines may use the replay server.",
        "Writes key pairs of the server and of the processes beside it into FOLDER; client=NAME"
        " writes a further one into FOLDER/NAME, for you to copy to that machine. Nothing is"
        " overwritten. Use them with replay=network replay.keys=FOLDER.",
        arguments=("FOLDER",),
        options=(Option("client", "name of one more client to let in"),),
        example="robot-rl keys keys client=robot2",
    ),
    "cell": Command(
        "robot_rl.commands.lab_files:write_cell",
        "Write the file of your robot, with comments, for you to complete.",
        "PATH is a YAML file, or a folder for cell.yaml; nothing is overwritten. Fill in what it"
        " marks with ???, check the devices with robot-rl doctor cell=PATH, and give cell=PATH to"
        " every command that has a configuration.",
        arguments=("PATH",),
        options=(
            Option("arm", "the arm; topics has a controller of its own on ROS topics", None, _ARMS),
            Option("arms", "names of several such arms, as left,right: one robot", ""),
            Option("gripper", "the gripper", "none", ("none", "robotiq", "franka", "topics")),
            Option(
                "cameras",
                "NAME:realsense:SERIAL, NAME:uvc:DEVICE or NAME:topics, ..., or ARM/NAME:...",
                "",
            ),
            Option("teleop", "the device of a person, one of configs/teleop", "none"),
        ),
        example="robot-rl cell lab arm=ur gripper=robotiq cameras=wrist:realsense:SERIAL"
        " teleop=spacemouse",
    ),
    "task": Command(
        "robot_rl.commands.lab_files:write_task",
        "Write the file of a task of your robot, which no simulation has, for you to complete.",
        "Writes FOLDER/configs/task/NAME.yaml; nothing is overwritten. A cell in FOLDER finds it:"
        " robot-rl collect cell=FOLDER task=NAME. Fill in what is marked with ??? with robot-rl"
        " teach. For tasks in simulation see docs/own_task.md.",
        arguments=("FOLDER/NAME",),
        options=(
            Option("instruction", "what the robot is to do, in words"),
            Option("reward", "who says what is success", "human", _REWARDS),
            Option("gripper", "what it does in an episode", "none", ("none", "closed", "moves")),
            Option("steps", "time limit, in steps of control_rate_hz", 200),
            Option("start", "TCP pose about which episodes start, [x,y,z,qx,qy,qz,qw]"),
            Option("noise", "half range of the start position on each axis in m", 0.01),
            Option("goal", "TCP pose at success of reward=pose, [x,y,z,qx,qy,qz,qw]"),
        ),
        example="robot-rl task lab/plug instruction='push the plug into the socket' gripper=closed",
    ),
    "nodes": Command(
        "robot_rl.commands.preparation:run_nodes",
        "Run the nodes of your robot alone, until Ctrl-C.",
        "Prints name and process of each node; a killed one is started again. Moves no arm and"
        " needs no task: robot-rl jog, teach and doctor talk to these nodes in another terminal."
        " Logs are in runs_directory/nodes.",
        run_key=None,
        keys="cell robot observation reward recorder.minutes recorder.segment_s runs_directory",
    ),
    "jog": Command(
        "robot_rl.commands.jog:run",
        "Move an arm by some millimetres, once you have pressed Enter.",
        "Sends targets along a straight line to the node of the arm, which must run. Stops, and"
        " says why, where the node holds, refuses or limits. Ctrl-C stops at once. The steps are in"
        " hardware/arms.md, section First motion.",
        options=(
            *(Option(axis, f"way along {axis} of the base frame in m", 0.0) for axis in "xyz"),
            Option("speed", "in m/s, at most 0.05", 0.01),
            Option("namespace", "of the arm's node", "/"),
            Option("yes", "true: do not wait for Enter", False),
        ),
        example="robot-rl jog z=0.01",
    ),
    "teach": Command(
        "robot_rl.commands.teach:run",
        "Print where a hand-guided arm is, as the lines of a cell or a task.",
        "Listens to the node of the arm, which must run, and never moves anything. Enter keeps a"
        " place, Ctrl-D ends; without any Enter the place is where the arm is. The lines are the"
        " reset of a cell through all places, or, for a task, the start region that they span, or"
        " the last one as the goal. robot-rl teach > reset.yaml keeps them. The steps are in"
        " hardware/arms.md, section Resets.",
        options=(
            Option("part", "what the lines are for", "reset", ("reset", "start", "goal")),
            Option("namespace", "of the arm's node", "/"),
        ),
        example="robot-rl teach",
    ),
    "doctor": Command(
        "robot_rl.commands.doctor:run",
        "Say what works on this machine, and how to fix what does not.",
        "Tries Python, physics, networks, rendering, GPU, cameras, ROS, input devices, disk and"
        " memory, each in its own process. Fails only without Python, MuJoCo or torch. With"
        " cell=PATH it tries the devices of that robot instead, moves nothing, and fails where one"
        " is missing.",
        options=(
            Option("cell", "a robot of yours, whose devices are looked at"),
            Option("task", "a task for it, whose values are looked at too"),
            Option("json", "one JSON object as the last line", False),
            Option("teleop", "a device, whose axes are shown live for some seconds"),
            Option("call", "only call this ROS service, such as /start or /clear_errors"),
            Option("topic", "only print the newest message of this, as /current_pose"),
        ),
        example="robot-rl doctor json=true",
    ),
    "bench": Command(
        "robot_rl.bench:run",
        "Measure one part on this machine.",
        "NAME is env, loop or replay. The last line is a JSON object: medians, and the machine.",
        run_key=None,
        arguments=("NAME",),
        keys="task robot policy algorithm observation seed device",
        example="robot-rl bench env",
    ),
}


def commands() -> dict[str, Command]:
    """Return our own commands and those of plug-ins, by name.

    Raises:
        RobotRLError: A plug-in cannot be read, or adds a command that exists.
    """
    return added("commands", COMMANDS)
