"""The learner process: runs the stages of the recipe that learn while actors act."""

from __future__ import annotations

from contextlib import suppress

import torch
from omegaconf import DictConfig

from robot_rl.learning.recipe import Recipe
from robot_rl.processes.machine import yield_to_control_loop
from robot_rl.processes.signals import Stopped, stop_event
from robot_rl.run import RunDirectory, learned_steps


def run(config: DictConfig) -> None:
    """Learn in the run directory `config.run`.

    Raises:
        KeyboardInterrupt: The learner was asked to stop, and has saved its checkpoint.
        RecipeError: A stage lacks what the ones before it make.
    """
    directory = RunDirectory.open(config.run, config.runs_directory)
    yield_to_control_loop(config.clock)
    torch.set_num_threads(1)
    recipe = Recipe(config)
    with stop_event() as stop, directory.claim("learner", 1.0):
        for name in recipe.left_with_actors(directory):
            with suppress(Stopped):
                recipe.perform(name, directory, stop)
            if stop.is_set():
                raise KeyboardInterrupt
    print(f"learner: learned from {learned_steps(directory)} environment steps", flush=True)
