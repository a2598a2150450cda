"""Demonstrations that others recorded: a reader a format, and one mapping to rows.

Reads HDF5 of robomimic 0.3, of Minari 0.5 and of D4RL (`hdf5`), the zarr of diffusion_policy
(`zarr_files`), NumPy's `.npz` (`numpy_files`), MCAP of ROS 2 topics (`mcap`), and LeRobot: v3.0 as
of release 0.4.4, v2.1 as of 0.3.3, and v2.0 (`lerobot`). The readers give columns as they are, and
say which they cannot read, and why: nothing damaged keeps back what is whole. What the columns
mean, a person says in a mapping file (`mapping`), and `mapped` makes rows by it.
"""

from __future__ import annotations

from pathlib import Path

from robot_rl.data.episode_files import inside
from robot_rl.data.episodes import NotADataset
from robot_rl.extras.importers.dataset import ForeignDataset
from robot_rl.extras.importers.hdf5 import open_hdf5
from robot_rl.extras.importers.numpy_files import open_npz
from robot_rl.extras.importers.zarr_files import is_zarr, open_zarr
from robot_rl.extras.lerobot import layout

_HDF5 = (".hdf5", ".h5")


def open_foreign(path: Path) -> ForeignDataset:
    """Open a folder of LeRobot, Minari, zarr, `.npz` or MCAP, or a file.

    Raises:
        MissingExtra: The package that reads the format is not installed.
        OutsideDataset: It names a file that is not in its folder.
        DatasetError: It is none, or cannot be read.
    """
    path = path.absolute()  # what is found in it is then named in full, wherever it is read
    if (path / layout.INFO_PATH).is_file():
        layout.require_packages()
        from robot_rl.extras.importers.lerobot_frames import open_lerobot  # late: needs them

        return open_lerobot(path)
    minari = path / "data" / "main_data.hdf5"
    if minari.is_file():
        return open_hdf5(inside(path, minari))
    if path.is_file() and path.suffix.lower() in _HDF5:
        return open_hdf5(path)
    if is_zarr(path):
        return open_zarr(path)
    if path.suffix == ".npz" or any(path.glob("*.npz")):
        return open_npz(path)
    if path.suffix == ".mcap" or any(path.glob("*.mcap")):
        from robot_rl.extras.importers.mcap import open_mcap

        return open_mcap(path)
    raise NotADataset(
        f"{path} is no dataset that can be imported",
        expected="an episode or LeRobot dataset, .hdf5 (robomimic, Minari, D4RL), zarr of"
        " diffusion_policy, .npz or .mcap",
        hint="give the folder that `robot-rl export` or LeRobot wrote, or the file; unpack a .zip",
    )
