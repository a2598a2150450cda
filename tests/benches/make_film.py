"""Make docs/peg_insert.gif: a run's cloned and learned policy on the same scenes.

python tests/benches/make_film.py RUN OUT.gif SEED...
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from policies.runner import PolicyRunner
from robot_rl.commands.runs import load_resolved
from robot_rl.config import on_stepped_clock
from robot_rl.env.factory import make_env
from robot_rl.env.robot_env import RobotEnv
from robot_rl.evaluation.ledger import load_policy
from robot_rl.run import CLONED_POLICY, LEARNED_POLICY, RunDirectory

TITLES = {CLONED_POLICY: "cloned from 20 demonstrations", LEARNED_POLICY: "after online learning"}
ENDS = {True: ("inserted", "#1a7f37"), False: ("out of time", "#cf222e")}
SHOWN = (slice(55, 205), slice(85, 235))  # of a picture of 240 x 320
SIDE, LINE, GAP, STILL = 150, 18, 4, 20
COLOURS = 64

Film = tuple[list[Image.Image], bool]


def film(env: RobotEnv, runner: PolicyRunner, seed: int) -> Film:
    """Pictures of one episode, and whether it succeeded."""
    robot: Any = env.robot
    observation, info = env.reset(seed=seed)
    runner.reset(seeds=[seed])
    pictures, over = [robot.picture()], False
    while not over:
        acted = runner.act({name: value[None] for name, value in observation.items()})
        observation, _, terminated, truncated, info = env.step(acted.action[0])
        pictures.append(robot.picture())
        over = terminated or truncated
    shown = [Image.fromarray(np.ascontiguousarray(picture[SHOWN])) for picture in pictures]
    return shown, info["success"]


def frame(films: dict[str, list[Film]], moment: int) -> Image.Image:
    """One row a policy, one column a scene."""
    columns = max(map(len, films.values()))
    size = (columns * (SIDE + GAP) - GAP, len(films) * (SIDE + 2 * LINE))
    image, font = Image.new("RGB", size, "white"), ImageFont.load_default(12)
    draw = ImageDraw.Draw(image)
    for row, (name, row_of_films) in enumerate(films.items()):
        top = row * (SIDE + 2 * LINE)
        draw.text((size[0] / 2, top + LINE / 2), TITLES[name], "black", font, anchor="mm")
        for column, (pictures, success) in enumerate(row_of_films):
            left, last = column * (SIDE + GAP), len(pictures) - 1
            image.paste(pictures[min(moment, last)], (left, top + LINE))
            text, colour = ENDS[success] if moment >= last else (f"{moment / 10:.1f} s", "black")
            middle = (left + SIDE / 2, top + LINE + SIDE + LINE / 2)
            draw.text(middle, text, colour, font, anchor="mm")
    return image


def main(path: str, out: str, *seeds: str) -> None:
    """Write the film."""
    run = RunDirectory.open(path)
    env = make_env(on_stepped_clock(load_resolved(run.path)))
    films = {}
    for name in TITLES:
        runner = PolicyRunner(load_policy(run, name)[0].exploring("mean"))
        films[name] = [film(env, runner, int(seed)) for seed in seeds]
    env.close()
    length = max(len(pictures) for row in films.values() for pictures, _ in row)
    frames = [frame(films, moment) for moment in range(length + STILL)]
    palette = frames[-1].quantize(COLOURS)
    still = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in frames]
    still[0].save(out, save_all=True, append_images=still[1:], duration=100, loop=0)
    sys.stdout.write(f"{out}: {len(frames)} frames, {Path(out).stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
