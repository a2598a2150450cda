"""A stand-in for the classes of ROS's `launch` and `launch_ros` that the launch files use.

They are not on PyPI. It only lets a test read what a launch file describes; it starts nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType


class Entity:
    """Anything described: its class's name and what it was made with."""

    def __init__(self, *positional, **named):
        self.positional, self.named = positional, named

    def __getattr__(self, name):
        try:
            return self.__dict__["named"][name]
        except KeyError:
            raise AttributeError(name) from None


class LaunchContext:
    def __init__(self, values):
        self.values = values


class LaunchConfiguration(Entity):
    def perform(self, context):
        return context.values[self.positional[0]]


class LaunchDescription:
    def __init__(self, entities):
        self.entities = entities


def _entity(name):
    return type(name, (Entity,), {})


CONTENT = {
    "launch": {"LaunchContext": LaunchContext, "LaunchDescription": LaunchDescription},
    "launch.actions": {
        name: _entity(name)
        for name in (
            "DeclareLaunchArgument",
            "ExecuteProcess",
            "OpaqueFunction",
            "SetEnvironmentVariable",
            "Shutdown",
        )
    },
    "launch.substitutions": {
        "LaunchConfiguration": LaunchConfiguration,
        "PathJoinSubstitution": _entity("PathJoinSubstitution"),
    },
    "launch_ros": {},
    "launch_ros.actions": {"Node": _entity("Node")},
    "launch_ros.substitutions": {"FindPackagePrefix": _entity("FindPackagePrefix")},
}


def install(monkeypatch):
    """Put the stand-in where `import launch` finds it."""
    for name, content in CONTENT.items():
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "robot_rl.commands.launching", raising=False)
