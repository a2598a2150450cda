"""Flight recorder: buffers the last minutes of all topics, and saves them at a fault.

It is a separate process, and no other process waits for it. It receives best effort over UDP,
because a subscriber through shared memory, or a reliable one, can block a sender. Its folder:

    ring/20261126-151500.mcap        the last minutes in segments; the oldest are deleted
    20261126-151742-SensorLate/      the ring's files at a fault, or at a call of recorder/keep

Files are MCAP with ROS 2 messages. The next recorder repairs a file left by a killed recorder.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from mcap.exceptions import EndOfFile
from mcap.reader import NonSeekingReader
from mcap.writer import Writer
from rclpy.qos import DurabilityPolicy
from rclpy.serialization import deserialize_message
from std_msgs.msg import String
from std_srvs.srv import Trigger

from robot_rl.env.robot import FAULT
from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import ENDS_WITH_INPUT, end_with_input, stop_event
from robot_rl.ros import qos
from robot_rl.ros.environment import clean_shared_memory, leave_shared_memory, prepare_environment
from robot_rl.ros.faults import RosUnavailable
from robot_rl.ros.ros_client import RosClient, message_type

# A killed recorder loses the last partial chunk, which is a second or less of an arm's state, and
# data since the last flush [bytes, s].
_CHUNK_BYTES, _TICK_SECONDS = 1 << 12, 0.5
_AFTER_SECONDS = 5.0  # recorded after a fault
_WAITING = 100  # queue depth per topic
_MAGIC = b"\x89MCAP0\r\n"
_PLAIN = {"double": "float64", "float": "float32", "boolean": "bool", "octet": "byte"}


class Ring:
    """The last `kept_s` seconds in `folder`, as files of `segment_s` seconds.

    The files together span up to one segment more. Raises `OSError` if the disk is full.
    """

    def __init__(self, folder: Path, kept_s: float, segment_s: float) -> None:
        self._folder, self._kept_s, self._segment_s = folder, kept_s, segment_s
        (folder / "ring").mkdir(parents=True, exist_ok=True)
        for path in self._segments():
            repair(path)
        self._latched: dict[str, tuple[str, str, bytes]] = {}
        self._begin()

    def write(
        self, topic: str, kind: str, definition: str, data: bytes, *, latched: bool = False
    ) -> None:
        """Write a serialised message; a latched one is repeated at the start of each later file."""
        if topic not in self._channels:
            schema = self._writer.register_schema(kind, "ros2msg", definition.encode())
            self._channels[topic] = self._writer.register_channel(topic, "cdr", schema)
        if latched:
            self._latched[topic] = (kind, definition, data)
        now = time.time_ns()
        self._writer.add_message(self._channels[topic], log_time=now, publish_time=now, data=data)

    def tick(self) -> None:
        """Flush to disk; at the end of a segment, start a new file and delete the oldest."""
        self._file.flush()
        if time.monotonic() - self._started >= self._segment_s:
            self.close()
            self._begin()
            oldest = time.time() - self._kept_s
            for path in self._segments():
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def keep(self, why: str) -> Path:
        """Save the ring's files in a folder named after the time and `why`."""
        self.close()
        kept = self._folder / f"{_stamp()}-{why}"
        kept.mkdir(exist_ok=True)
        for path in self._segments():
            (kept / path.name).unlink(missing_ok=True)
            os.link(path, kept / path.name)
        self._begin()
        return kept

    def _segments(self) -> list[Path]:
        return sorted((self._folder / "ring").glob("*.mcap"))

    def _begin(self) -> None:
        self._file = (self._folder / "ring" / f"{_stamp()}.mcap").open("wb")
        self._writer, self._channels = _writer(self._file), dict[str, int]()
        self._started = time.monotonic()
        for topic, (kind, definition, data) in self._latched.items():
            self.write(topic, kind, definition, data)

    def close(self) -> None:
        """Finish the latest file."""
        self._writer.finish()
        self._file.close()


def _stamp() -> str:
    return datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]


def _writer(file: Any) -> Writer:
    writer = Writer(file, chunk_size=_CHUNK_BYTES)
    writer.start(profile="ros2", library="robot_rl")
    return writer


def repair(path: Path) -> None:
    """Repair the MCAP file of a killed recorder; keeps all complete chunks."""
    with path.open("rb") as torn:
        torn.seek(-min(len(_MAGIC), path.stat().st_size), os.SEEK_END)
        if torn.read() == _MAGIC and path.stat().st_size > len(_MAGIC):
            return
        torn.seek(0)
        aside = path.with_suffix(".partial")
        with aside.open("wb") as file:
            writer, numbers = _writer(file), dict[int, int]()
            messages = NonSeekingReader(torn).iter_messages(log_time_order=False)
            try:
                for schema, channel, message in messages:
                    assert schema is not None  # all our channels have one
                    if channel.id not in numbers:
                        kind = writer.register_schema(schema.name, schema.encoding, schema.data)
                        known = (channel.topic, channel.message_encoding, kind)
                        numbers[channel.id] = writer.register_channel(*known)
                    parts = (message.log_time, message.data, message.publish_time)
                    writer.add_message(numbers[channel.id], *parts)
            except EndOfFile:
                pass  # end of the truncated file
            writer.finish()
    aside.replace(path)


def definition_of(kind: Any) -> str:
    """Return a message type's MCAP definition: its fields, then the types that they use."""
    texts: list[str] = []
    waiting, known = [kind], {kind}
    while waiting:
        part = waiting.pop(0)
        lines = []
        for name, written in part.get_fields_and_field_types().items():
            base, end = _field_type(written)
            lines.append(f"{base}{end} {name}")
            if "/" in base:
                inner = message_type(base.replace("/", "/msg/"))
                waiting += [inner] * (inner not in known)
                known.add(inner)
        package = part.__module__.partition(".")[0]
        head = f"{'=' * 80}\nMSG: {package}/{part.__name__}\n" if texts else ""
        texts.append(head + "\n".join(lines))
    return "\n".join(texts)


def _field_type(written: str) -> tuple[str, str]:
    """Convert an rclpy field type, `sequence<double>`, to `.msg` notation: `float64`, `[]`."""
    if found := re.fullmatch(r"sequence<(.*?)(?:, (\d+))?>", written):
        base, most = found.groups()
        end = f"[<={most}]" if most else "[]"
    else:
        base, bracket, rest = written.partition("[")
        end = bracket + rest
    base = re.sub(r"<(\d+)>", r"<=\1", base)
    return _PLAIN.get(base, base), end


class Recorder:
    """Subscribes to every topic when it appears, and writes to a ring."""

    def __init__(self, client: RosClient, ring: Ring) -> None:
        self._client, self._ring, self._log = client, ring, client.node.get_logger()
        self._known: set[str] = set()
        self._keep_at, self._why = float("inf"), ""
        client.node.create_service(Trigger, "recorder/keep", self._serve)
        client.node.create_timer(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        for topic, kinds in self._client.node.get_topic_names_and_types():
            if topic not in self._known and self._client.node.count_publishers(topic):
                self._known.add(topic)
                self._subscribe(topic, kinds[0])
        if time.monotonic() >= self._keep_at:
            self.keep_fault()
        self._ring.tick()

    def keep_fault(self) -> None:
        """Save the recording of a fault that is not saved yet, if there is one."""
        if self._keep_at != float("inf"):
            self._keep_at = float("inf")
            self._keep(self._why)

    def _subscribe(self, topic: str, name: str) -> None:
        try:
            kind = message_type(name)
            definition = definition_of(kind)
        except RosUnavailable as problem:
            self._log.warning(f"{topic} is not recorded: {problem}")
            return
        offered = self._client.node.get_publishers_info_by_topic(topic)
        durabilities = {one.qos_profile.durability for one in offered}
        latched = durabilities == {DurabilityPolicy.TRANSIENT_LOCAL}
        events = topic.endswith("/events") and kind is String

        def take(data: bytes) -> None:
            self._ring.write(topic, name, definition, data, latched=latched and not events)
            if events and self._keep_at == float("inf"):
                words = deserialize_message(data, String).data
                if words.startswith(FAULT):
                    self._keep_at = time.monotonic() + _AFTER_SECONDS
                    self._why = words.removeprefix(FAULT).partition(":")[0]

        profile = qos.latched(_WAITING) if latched else qos.sensor_subscription(_WAITING)
        self._client.node.create_subscription(kind, topic, take, profile, raw=True)

    def _serve(self, request: Trigger.Request, answer: Trigger.Response) -> Trigger.Response:
        answer.success, answer.message = True, str(self._keep("asked"))
        return answer

    def _keep(self, why: str) -> Path:
        kept = self._ring.keep(why)
        self._log.info(f"kept: {kept}")
        return kept


def main(folder: str, namespace: str, minutes: str, segment_s: str) -> int:
    """Record until stopped; returns the exit code, 2 after an error such as a full disk."""
    ends_with_input = os.environ.pop(ENDS_WITH_INPUT, None)
    prepare_environment()
    leave_shared_memory()
    clean_shared_memory()
    lengths = (60.0 * float(minutes), float(segment_s))
    try:
        with stop_event() as stop, closing(Ring(Path(folder), *lengths)) as ring:
            if ends_with_input:
                end_with_input()
            with closing(RosClient("recorder", namespace)) as client:
                recorder = Recorder(client, ring)
                while not stop.wait(_TICK_SECONDS):
                    client.check()
            recorder.keep_fault()  # after the last message
    except (RobotRLError, OSError) as error:
        sys.stderr.write(f"the flight recorder has failed: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
