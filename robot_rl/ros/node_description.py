"""One ROS 2 node that is to be started. Loads no ROS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class NodeDescription:
    """One node.

    Attributes:
        name: Its name in its namespace.
        executable: Its name in the ROS package `robot_rl`.
        module: The Python module that the executable runs.
        namespace: Absolute.
        parameters: ROS parameters: numbers, booleans, texts and lists, by dotted name.
        remappings: Old name → new name of topics and services.
    """

    name: str
    executable: str
    module: str
    namespace: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    remappings: Mapping[str, str] = field(default_factory=dict)

    @property
    def process(self) -> str:
        """A name that no other node of the table has, for its process and its files."""
        return "-".join(part for part in f"{self.namespace}/{self.name}".split("/") if part)

    def arguments(self, parameter_file: Path) -> list[str]:
        """What follows the executable on a command line."""
        remappings = {"__node": self.name, "__ns": self.namespace, **self.remappings}
        pairs = [word for old, new in remappings.items() for word in ("-r", f"{old}:={new}")]
        return ["--ros-args", *pairs, "--params-file", str(parameter_file)]

    def parameter_file(self) -> str:
        """The content of a parameter file for this node, YAML."""
        return json.dumps({"/**": {"ros__parameters": dict(self.parameters)}}, indent=2) + "\n"
