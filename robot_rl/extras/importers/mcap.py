"""Imports MCAP recordings of ROS 2 topics as demonstrations: one step per robot command.

In the flight recorder's recordings each `action` message, published at the end of a step, is a
step, and `events` mark where episodes start and end. In other recordings each `target_pose` message
is a step, and each file an episode. Other topics use their latest message at that time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.episode_files import damage, inside
from robot_rl.data.episodes import DatasetError
from robot_rl.data.schema import Array
from robot_rl.errors import require
from robot_rl.extras.importers.dataset import (
    ALL,
    Episodes,
    ForeignDataset,
    ForeignEpisode,
    read_columns,
)
from robot_rl.safety import rotations

_ACTION, _TARGET, _POSE = "action", "target_pose", "current_pose"
_EVENTS, _REWARD, _GRIPPER = "events", "reward", "gripper/state"
_BEGINS = re.compile(r"episode \d+ begins")
_ENDS = re.compile(r"episode \d+ ends with (success|failure)(, cut short)?")
_LOST = 1.75  # in step lengths; a larger gap between two actions means that one was lost
# Columns from the recorder's events, and one from the measured pose and the target.
_OUTCOMES, _LEAD = ("reward", "terminated", "success"), "target_lead"
# Topics of docs/topics.md, and their fields in a row.
_OBSERVED = {
    _POSE: "tcp_pose",
    "current_twist": "tcp_velocity",
    "current_wrench": "tcp_wrench",
    "object_poses": "object_poses",
}
_PICTURE = re.compile(r"([\w/-]+)/color/image_raw")
_PLACE = ("x", "y", "z", "qx", "qy", "qz", "qw")
_COLORS = {"rgb8": slice(None), "bgr8": slice(None, None, -1)}


def open_mcap(path: Path) -> ForeignDataset:
    """Open a file or a folder as a `McapRecording`."""
    recording = McapRecording(path)
    kind, answers = "MCAP", {"control_rate_hz": recording.rate, "action": recording.acting}
    if recording.left_out:
        kind += f", without {recording.left_out} episodes of which actions were lost"
    if recording.ours:
        own = {"action_convention": "joint", "action_low": -1.0, "action_high": 1.0}
        answers |= own | {"reward": "success", "terminated": "terminated", "success": "success"}
    else:
        answers["action_convention"] = "absolute"
    return ForeignDataset(
        kind,
        {ALL: len(recording)},
        recording.columns,
        lambda names, _: recording.episodes(names),
        answers=answers,
        observed=recording.observed,
    )


def _vector(part: Any) -> list[float]:
    return [part.x, part.y, part.z]


def _pose(pose: Any) -> list[float]:
    return [*_vector(pose.position), *_vector(pose.orientation), pose.orientation.w]


def _picture(image: Any) -> Array:
    pixels = np.frombuffer(bytes(image.data), np.uint8).reshape(image.height, image.step)
    rows = pixels[:, : 3 * image.width].reshape(image.height, image.width, 3)
    return np.asarray(rows[..., _COLORS[image.encoding]])


_VALUES: dict[str, Callable[[Any], Any]] = {
    "sensor_msgs/msg/JointState": lambda m: [*m.position, *m.velocity],
    "sensor_msgs/msg/Image": _picture,
    "geometry_msgs/msg/PoseStamped": lambda m: _pose(m.pose),
    "geometry_msgs/msg/PoseArray": lambda m: [x for pose in m.poses for x in _pose(pose)],
    "geometry_msgs/msg/TwistStamped": lambda m: _vector(m.twist.linear) + _vector(m.twist.angular),
    "geometry_msgs/msg/WrenchStamped": lambda m: _vector(m.wrench.force) + _vector(m.wrench.torque),
    "std_msgs/msg/Float64": lambda m: [m.data],
    "std_msgs/msg/Bool": lambda m: [float(m.data)],
}


@dataclass
class _Episode:
    moments: list[int] = field(default_factory=list)  # when each step ended [ns]
    # The latest messages by topic, at the start and at the end of each step.
    seen: list[dict[str, Any]] = field(default_factory=list)
    rewards: list[tuple[int, float]] = field(default_factory=list)  # with the time [ns]
    success: bool = False
    cut: bool = True


class McapRecording:
    """Episodes in MCAP files, with columns named after their topics.

    Attributes:
        ours: Whether the flight recorder wrote them.
        acting: Topic with one message per step.
        rate: Steps per second [Hz].
        columns: Names of the numbers of each column.
        observed: Observation → column, for topics with our names.
        left_out: Number of episodes without an action.

    Raises:
        MissingExtra: The packages that read MCAP are not installed.
        DatasetError: There is no episode, or a file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        require("mcap_ros2", "mcap")
        files = (inside(path, file) for file in path.glob("*.mcap"))
        self._path, self._files = path, sorted(files) if path.is_dir() else [path]
        kinds = self._topics()
        leading = [t for end in (_ACTION, _TARGET) for t in kinds if t.endswith(f"/{end}")]
        space, slash, self.acting = [*leading, ""][0].rpartition("/")
        self._space = space + slash
        self.ours = self.acting == _ACTION
        self._kinds = {
            topic.removeprefix(self._space): kind
            for topic, kind in kinds.items()
            if kind in _VALUES
        }
        steps = [np.diff(episode.moments) for episode in self._read([])]
        period = float(np.median(np.concatenate(steps))) if any(map(len, steps)) else 0.0
        self._whole = [len(all_) > 0 and all_.max() < _LOST * period for all_ in steps]
        if not any(self._whole):
            raise DatasetError(
                f"there is no whole episode in {path}",
                got=f"topics {', '.join(sorted(kinds)) or 'none'}",
                expected="action and events of the flight recorder, or target_pose",
            )
        self.left_out, self.rate = self._whole.count(False), round(1e9 / period, 1)
        self.columns, self.observed = dict[str, tuple[str, ...]](), dict[str, Any]()
        every = zip(self._read([*self._kinds]), self._whole, strict=True)
        first = next(episode for episode, whole in every if whole)
        for name, message in first.seen[-1].items():
            if name in first.seen[0] or name == _ACTION:
                self._add(name, message)
        if _POSE in self.columns and _TARGET in first.seen[-1]:
            self.columns[_LEAD], self.observed["state/target_lead"] = (), _LEAD
        self.columns |= dict.fromkeys(_OUTCOMES if self.ours else (), ())

    def __len__(self) -> int:
        return sum(self._whole)

    def episodes(self, names: Collection[str]) -> Episodes:
        """Yield these columns of each episode; the recorder's observations are one longer.

        A column is unreadable in an episode if one of its messages cannot be read, or if their
        lengths differ.
        """
        asked = [name for name in names if name not in _OUTCOMES]
        read = self._read({*asked, _POSE, _TARGET} if _LEAD in asked else asked)
        for number, (episode, whole) in enumerate(zip(read, self._whole, strict=True)):
            if not whole:
                continue
            columns, unreadable = read_columns(asked, partial(self._column, episode.seen))
            columns |= _outcomes(episode) if self.ours else {}
            yield ForeignEpisode(f"episode {number}", columns, unreadable)

    def _add(self, name: str, message: Any) -> None:
        """Add a column, and its observation field if it has one."""
        arm, slash, topic = name.rpartition("/")
        own = f"state/{arm}{slash}"
        is_joints = hasattr(message, "position")
        names = (*message.name, *message.name[: len(message.velocity)]) if is_joints else ()
        self.columns[name] = _PLACE if name == _TARGET else tuple(names)
        if topic == "joint_states":
            half = len(message.position)
            self.observed[f"{own}joint_positions"] = f"{name}[0:{half}]"
            self.observed[f"{own}joint_velocities"] = f"{name}[{half}:{2 * half}]"
        elif name.endswith(_GRIPPER):
            self.observed[f"state/{name.removesuffix(_GRIPPER)}gripper_position"] = name
        elif topic in _OBSERVED:
            self.observed[own + _OBSERVED[topic]] = name
        elif picture := _PICTURE.fullmatch(name):
            self.observed[f"images/{picture[1]}"] = name

    def _column(self, seen: list[dict[str, Any]], name: str) -> Array:
        with damage(f"{name!r} of {self._path}"):
            if name != _LEAD:
                value = _VALUES[self._kinds[name]]
                return np.array([value(at[name]) for at in seen[name == _ACTION :]])
            poses = self._column(seen, _POSE)
            targets = self._column(seen[self.ours :], _TARGET)
            # The recorder's episodes start at rest, where the pose is the target.
            pairs = zip(poses[self.ours :], targets, strict=True)
            leads = [rotations.between(*pair) for pair in pairs]
            return np.array([np.zeros(6)] * self.ours + leads)

    def _read(self, names: Collection[str]) -> Iterator[_Episode]:
        """Yield every episode, with the latest messages of these topics at its start and steps."""
        episode: _Episode | None = None
        newest: dict[str, Callable[[], Any]] = {}
        for file in self._files:
            if not self.ours:
                yield from [episode] if episode else []
                episode = _Episode()
            for topic, at, decode in self._messages(file, {*names, self.acting, _EVENTS, _REWARD}):
                if topic == _EVENTS:
                    words = decode().data
                    if _BEGINS.match(words):
                        yield from [episode] if episode else []
                        episode = _Episode(seen=[_sample(newest, names)])
                    elif episode and (ended := _ENDS.match(words)):
                        episode.success, episode.cut = ended[1] == "success", bool(ended[2])
                elif topic == _REWARD and episode:
                    episode.rewards.append((at, decode().data))
                newest[topic] = decode
                if topic == self.acting and episode:
                    episode.moments.append(at)
                    episode.seen.append(_sample(newest, names))
        yield from [episode] if episode else []

    def _messages(
        self, file: Path, names: Collection[str]
    ) -> Iterator[tuple[str, int, Callable[[], Any]]]:
        """Yield topic, time of receipt [ns] and decoder, in the order of receipt."""
        from mcap.reader import make_reader
        from mcap_ros2.decoder import DecoderFactory

        factory, topics = DecoderFactory(), [self._space + name for name in names]
        with damage(self._path), file.open("rb") as opened:
            for schema, channel, message in make_reader(opened).iter_messages(topics=topics):
                decode = factory.decoder_for(channel.message_encoding, schema)
                if decode is not None:
                    topic = channel.topic.removeprefix(self._space)
                    yield topic, message.log_time, partial(decode, message.data)

    def _topics(self) -> dict[str, str]:
        """Read the topics of all files, and their types."""
        from mcap.reader import make_reader

        found = {}
        for file in self._files:
            with damage(self._path), file.open("rb") as opened:
                summary = make_reader(opened).get_summary()
            if summary is not None:
                for channel in summary.channels.values():
                    found[channel.topic] = summary.schemas[channel.schema_id].name
        return found


def _sample(newest: dict[str, Callable[[], Any]], names: Collection[str]) -> dict[str, Any]:
    return {name: newest[name]() for name in names if name in newest}


def _outcomes(episode: _Episode) -> dict[str, Array]:
    """Reward, termination and success (T,) of its steps; a reward counts for the nearest action."""
    moments = np.array(episode.moments)
    at, rewards = np.array(episode.rewards or [(0, np.nan)]).T
    nearest = np.abs(at - moments[:, None]).argmin(axis=1)
    last = np.arange(len(moments)) == len(moments) - 1
    columns = (rewards[nearest], last & (not episode.cut), last & episode.success)
    return dict(zip(_OUTCOMES, columns, strict=True))
