"""What is damaged, absent or oddly written in a dataset of others keeps back nothing else."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import foreign_files as files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demonstrations import cut_file, edit, run
from foreign_files import ANSWERS, CAMERA, LENGTHS, fill

from robot_rl import cli
from robot_rl.data.episodes import Episode
from robot_rl.extras.importers.import_dataset import open_foreign
from robot_rl.extras.importers.mapped import MappedEpisodes

h5py = pytest.importorskip("h5py", reason="needs the extra hdf5")

INFO = "meta/info.json"
RECORDS_21, RECORDS_30 = "meta/episodes.jsonl", "meta/episodes/chunk-000/file-000.parquet"
DATA_21, DATA_30 = "data/chunk-000/episode_000001.parquet", "data/chunk-000/file-000.parquet"
VIDEO_21 = f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
VIDEO_30 = f"videos/{CAMERA}/chunk-000/file-000.mp4"
WRITERS = {
    "v2.1": files.write_lerobot_21_with_camera,
    "v3.0": files.write_lerobot_30,
    "robomimic.hdf5": files.write_robomimic,
    "minari": files.write_minari,
    "d4rl.hdf5": files.write_d4rl,
    "all.npz": files.write_npz,
    "takes": files.write_npz_folder,
    "zarr2": lambda path: files.write_zarr(path, 2),
    "zarr3": lambda path: files.write_zarr(path, 3),
}
# Where no column says how an episode ended, each is taken.
TAKEN = ANSWERS | {"terminated": "never", "success": "all"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One undamaged dataset of each layout."""
    folder = tmp_path_factory.mktemp("whole")
    for name, write in WRITERS.items():
        write(folder / name)
    return folder


def copied(whole: Path, folder: Path, name: str) -> Path:
    copy = shutil.copytree if (whole / name).is_dir() else shutil.copy
    copy(whole / name, folder / name)
    return folder / name


def imported(place: Path, folder: Path, **answers: str) -> tuple[list[Episode], list[str]]:
    """The episodes that an import writes, and its report."""
    mapping = folder / "out.map.yaml"
    assert run("import", place, folder / "out.zarr") == 0
    source = MappedEpisodes(open_foreign(place), fill(mapping, TAKEN, **answers))
    return [*source.episodes()], source.report


# Damages. Each takes the path of a dataset.


def json_file(name: str, change: Callable[[dict], object]) -> Callable[[Path], None]:
    return lambda path: edit(path / name, change)


def info(change: Callable[[dict], object]) -> Callable[[Path], None]:
    return json_file(INFO, change)


def feature(key: str, **entries: object) -> Callable[[Path], None]:
    return info(lambda c: c["features"][key].update(entries))


def lacking(*keys: str) -> Callable[[Path], None]:
    return info(lambda c: [c.pop(key) for key in (*keys, "robot_type")])


def gone(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def cut(name: str, share: float = 0.5) -> Callable[[Path], None]:
    return lambda path: cut_file(path / name, share)


def lines(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = path / RECORDS_21
        file.write_text("\n".join(change(file.read_text().split("\n"))))

    return damage


def column(file: str, name: str, change: Callable[[pa.Array], object]) -> Callable[[Path], None]:
    """Put other values in place of a column; None takes it away."""

    def damage(path: Path) -> None:
        table = pq.read_table(path / file)
        new = change(table[name].combine_chunks())
        at = table.column_names.index(name)
        table = table.drop_columns([name]) if new is None else table.set_column(at, name, [new])
        pq.write_table(table, path / file)

    return damage


def dropped(file: str, *names: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for name in names:
            column(file, name, lambda _: None)(path)

    return damage


def hdf5(change: Callable[["h5py.File"], object], name: str = "") -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with h5py.File(path / name if name else path, "r+") as file:
            change(file)

    return damage


def replaced(name: str, value: object) -> Callable[["h5py.File"], None]:
    def change(file: "h5py.File") -> None:
        del file[name]
        file[name] = value

    return change


def attribute(value: object) -> Callable[["h5py.File"], None]:
    return lambda file: file["data"].attrs.update({"env_args": value})


def npz(name: str, **columns: object) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = path / name if name else path
        old = dict(np.load(file))
        new = {key: value for key, value in {**old, **columns}.items() if value is not None}
        np.savez(file, **new)

    return damage


def broken_member(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("broken.npy", b"\x93NUMPY no header")


def each(table: dict[str, list[tuple]]) -> list[tuple]:
    return [(name, *case) for name, cases in table.items() for case in cases]


MAIN, META = "data/main_data.hdf5", "data/metadata.json"
Q = "observation.state"

# Layout, damage, episodes that are imported with every column that the map proposes, and what the
# map or the report says of it.
MARKED = {
    "v2.1": [
        (gone(VIDEO_21), 2, ["there is no file videos/chunk-000", "1 episodes lack it"]),
        (cut(VIDEO_21), 2, ["episode 1 left out", "episode_000001.mp4"]),
        (lambda p: shutil.rmtree(p / "videos"), 3, [f"{CAMERA}  unreadable: there is no file"]),
        (feature(CAMERA, shape=[3, 32, 48], names=["c", "h", "w"]), 3, []),
        (feature(CAMERA, shape=None, names=None), 3, []),
        (feature(CAMERA, dtype="VIDEO"), 3, []),
        (feature(CAMERA, dtype=None), 3, [f"{CAMERA}  unreadable", "lacks the column"]),
        (info(lambda c: c["features"].update({CAMERA: None})), 3, ["info.json cannot"]),
        (info(lambda c: c.update(video_path="{a}.mp4")), 3, ["'{a}.mp4'", "{a} is none"]),
        (info(lambda c: c.update(video_path=7)), 3, ["unreadable", "it is no text"]),
        (info(lambda c: c.update(video_path="{video_key.__class__}")), 3, ["unreadable"]),
        (info(lambda c: c.update(video_path="{episode_index:0999999d}")), 3, ["none of"]),
        (lacking("data_path", "video_path", "chunks_size", "total_episodes"), 3, []),
        (info(lambda c: c.update(total_episodes=9)), 3, ["got: 3; expected: 9"]),
        (info(lambda c: c.update(codebase_version="v2.0")), 3, []),
        (info(lambda c: c.update(codebase_version="2.1")), 3, []),
        (info(lambda c: c.update(fps="20")), 3, []),
        (gone("meta/tasks.jsonl"), 3, ["instructions may be missing"]),
        (gone(DATA_21), 2, ["episode 1 left out", "cannot be read"]),
        (cut(DATA_21), 2, ["episode 1 left out"]),
        (lines(lambda rows: [rows[0], "", *rows[1:], " ", ""]), 3, []),
        (lines(lambda rows: [*rows[:2], rows[2][:20]]), 2, ["line 3 of", "got: 2;"]),
        (lines(lambda rows: [rows[0], "null", *rows[1:]]), 3, ["line 2 of"]),
        (lines(lambda rows: [rows[0], rows[2]]), 2, ["got: 2; expected: 3"]),
        (lines(lambda rows: [r.replace('"length": 4', '"length": 5') for r in rows]), 2, []),
        (lines(lambda rows: [r.replace('"length": 4', '"length": null') for r in rows]), 3, []),
        (lines(lambda rows: [r.replace('"tasks"', '"t"') for r in rows]), 3, []),
        (lines(lambda rows: [r.replace('["reach the goal"]', "null") for r in rows]), 3, []),
        (lines(lambda r: [*r, '{"episode_index": "x"}']), 3, ["cannot be read"]),
        (dropped(DATA_21, "next.reward"), 2, ["next.reward", "unreadable in part", "lacks"]),
        (dropped(DATA_21, "index", "timestamp", "episode_index", "task_index"), 3, []),
        (feature(Q, shape=[3]), 3, [f"{Q}  unreadable", "expected: 3 numbers a row"]),
        (feature(Q, shape=None), 3, []),
        (feature(Q, shape=[1, 2]), 3, []),
        (feature(Q, shape="two"), 3, [f"{Q}  unreadable"]),
        (feature(Q, shape=[-1, 2]), 3, [f"{Q}  unreadable"]),
        (feature(Q, shape=[10**30]), 3, [f"{Q}  unreadable"]),
        (feature(Q, dtype="float64"), 3, []),
        (feature(Q, dtype="string"), 3, []),
        (feature(Q, names="x"), 3, []),
        (feature(Q, names=[None, {}]), 3, []),
    ],
    "v3.0": [
        (gone(VIDEO_30), 3, [f"{CAMERA}  unreadable: there is no file"]),
        (cut(VIDEO_30), 3, ["unreadable"]),
        (dropped(RECORDS_30, "tasks"), 3, []),
        (dropped(RECORDS_30, "length"), 3, []),
        (dropped(RECORDS_30, "dataset_from_index", "dataset_to_index"), 3, []),
        (dropped(RECORDS_30, f"videos/{CAMERA}/from_timestamp"), 3, [f"{CAMERA}  unreadable"]),
        (dropped(RECORDS_30, f"videos/{CAMERA}/file_index"), 3, [f"{CAMERA}  unreadable"]),
        (gone("meta/tasks.parquet"), 3, []),
        (cut("meta/tasks.parquet"), 3, ["instructions may be missing"]),
        (dropped("meta/tasks.parquet", "task_index"), 3, ["instructions may be missing"]),
        (dropped(DATA_30, "task_index", "index", "frame_index", "timestamp"), 3, []),
        (dropped(DATA_30, "next.success"), 3, ["next.success  unreadable", "lacks the column"]),
        (
            column(DATA_30, Q, lambda c: pa.array(c.to_pylist(), pa.list_(pa.float64()))),
            3,
            [f"{Q}  float32 (2,)"],
        ),
        (
            column(DATA_30, Q, lambda c: pa.array(c.to_pylist(), pa.large_list(pa.float32()))),
            3,
            [f"{Q}  float32 (2,)"],
        ),
        (column(DATA_30, Q, lambda c: pa.array(["a"] * len(c))), 3, [f"{Q}  unreadable"]),
        (
            column(
                DATA_30, Q, lambda c: pa.array([[0.0, 1.0]] * 17 + [[1.0]], pa.list_(pa.float32()))
            ),
            2,
            ["unreadable in part", "episode 2 left out"],
        ),
        (
            column(DATA_30, "next.reward", lambda c: pa.array([None] + [0.0] * 17, pa.float32())),
            2,
            ["next.reward", "unreadable in part", "1 missing"],
        ),
        (column(DATA_30, "next.success", lambda c: c.cast(pa.int64())), 3, []),
        (column(DATA_30, "next.reward", lambda c: c.cast(pa.float64())), 3, []),
    ],
    "robomimic.hdf5": [
        (hdf5(attribute("null")), 3, ["env_args is not used: it is no JSON object"]),
        (hdf5(attribute(b'{"env_name": "A"}')), 3, ["environment A"]),
        (hdf5(attribute(np.zeros(3))), 3, ["env_args is not used"]),
        (hdf5(attribute("[" * 100_000)), 3, ["env_args is not used"]),
        (hdf5(attribute('{"env_kwargs": {"control_freq": "x"}}')), 3, []),
        (hdf5(attribute('{"env_kwargs": [1]}')), 3, []),
        (hdf5(attribute('{"env_name": "a\\ntask: evil"}')), 3, []),
        (hdf5(lambda f: f["data"].attrs.clear()), 3, ["environment None"]),
        (
            hdf5(replaced("mask/train", [b"demo_0", b"demo_9"])),
            3,
            ["mask/train names demo_9", "train (1)"],
        ),
        (hdf5(replaced("mask/train", [1, 2])), 3, ["mask/train cannot be read"]),
        (hdf5(replaced("mask/train", np.zeros(0, "S6"))), 3, []),
        (hdf5(lambda f: f["mask"].create_group("g")), 3, ["mask/g cannot be read"]),
        (hdf5(replaced("mask", 1)), 3, []),
        (hdf5(lambda f: f.pop("data/demo_1")), 2, ["mask/valid names demo_1"]),
        (hdf5(replaced("data/demo_1", 3.0)), 2, ["demo_1 is left out"]),
        (hdf5(lambda f: f.create_group("data/demo_3")), 3, ["demo_3 is left out"]),
        (
            hdf5(lambda f: f["data/demo_1/obs"].pop("place")),
            2,
            ["obs/place", "unreadable in part", "demo_1 left out: it is not there"],
        ),
        (
            hdf5(lambda f: f["data/demo_0"].update({"obs/text": [b"a"] * 6})),
            3,
            ["obs/text  unreadable: it holds no numbers"],
        ),
        (
            hdf5(lambda f: f["data/demo_0"].update({"obs/far": h5py.ExternalLink("/a.h5", "/x")})),
            3,
            ["obs/far  unreadable: it is a link"],
        ),
        (
            hdf5(lambda f: f["data"].update({"demo_3": h5py.ExternalLink("/a.h5", "/x")})),
            3,
            ["demo_3 is left out"],
        ),
        (
            hdf5(
                lambda f: f["data/demo_0"].create_dataset(
                    "obs/raw", (6, 2), "f4", external=[("/etc/hostname", 0, 48)]
                )
            ),
            3,
            ["obs/raw  unreadable: its numbers are in another file"],
        ),
    ],
    "minari": [
        (gone(META), 3, []),
        (cut(META), 3, ["metadata.json is not used"]),
        (lambda p: (p / META).write_bytes(b"\xff\xfe"), 3, ["metadata.json cannot be read"]),
        (json_file(META, lambda c: c.update(env_spec=None, action_space=None)), 3, []),
        (json_file(META, lambda c: c.update(env_spec="{")), 3, ["env_spec of metadata.json"]),
        (json_file(META, lambda c: c.update(env_spec={"id": "Reach-v0"})), 3, []),
        (json_file(META, lambda c: c.update(action_space='{"type": "Box"}')), 3, ["no low"]),
        (
            json_file(
                META, lambda c: c.update(action_space='{"type":"Box","low":[-Infinity],"high":[1]}')
            ),
            3,
            ["bounds nothing"],
        ),
        (
            json_file(
                META, lambda c: c.update(action_space='{"type":"Box","low":[-3e38],"high":[3e38]}')
            ),
            3,
            ["bounds nothing"],
        ),
        (hdf5(lambda f: f.pop("episode_0"), MAIN), 2, []),
        (hdf5(lambda f: f.pop("episode_1/actions"), MAIN), 2, ["episode_1"]),
        (hdf5(lambda f: f.pop("episode_1/infos"), MAIN), 2, ["unreadable in part"]),
        (hdf5(lambda f: f["episode_1"].pop("truncations"), MAIN), 3, ["unreadable in part"]),
    ],
    "d4rl.hdf5": [
        (hdf5(lambda f: f.pop("rewards")), 3, []),
        (hdf5(replaced("rewards", np.zeros(7))), 3, ["rewards  unreadable", "(7,)"]),
    ],
    "all.npz": [
        (npz("", reward=np.array([{}] * 18)), 3, ["reward  unreadable", "allow_pickle"]),
        (npz("", reward=np.array(["a"] * 18)), 3, ["reward  unreadable", "no numbers"]),
        (npz("", success=None), 3, []),
        (broken_member, 3, ["#   broken  unreadable: it cannot be read"]),
    ],
    "takes": [
        (cut("take_9.npz"), 2, ["take_9.npz is left out", "cannot be read"]),
        (lambda p: (p / "take_9.npz").write_bytes(b""), 2, ["take_9.npz is left out"]),
        (npz("take_9.npz", success=None), 2, ["success", "unreadable in part"]),
        (npz("take_9.npz", action=None, success=None, **{"obs/place": None}), 2, ["no steps"]),
    ],
    "zarr2": [
        (gone("data/success/.zarray"), 3, []),
        (cut("data/success/.zarray"), 3, ["success  unreadable", "cannot be read"]),
        (
            json_file("data/success/.zarray", lambda c: c.update(compressor={"id": "pickle"})),
            3,
            ["success  unreadable", "pickle"],
        ),
        (
            json_file("data/success/.zarray", lambda c: c.update(compressor={"id": "no_such"})),
            3,
            ["success  unreadable"],
        ),
        (json_file("data/img/.zarray", lambda c: c.update(dtype="|O")), 3, ["img  unreadable"]),
        (cut("data/img/0.0.0.0"), 2, ["episode 0 left out"]),
        (gone("data/success/0"), 3, ["success lacks 1 files"]),
    ],
    "zarr3": [
        (cut("data/img/zarr.json"), 3, ["img  unreadable"]),
        (
            json_file("data/img/zarr.json", lambda c: c.update(data_type="q")),
            3,
            ["img  unreadable"],
        ),
        (cut("data/img/c/3/0/0/0"), 2, ["episode 2 left out"]),
        (gone("zarr.json"), 3, []),
    ],
}


@pytest.mark.parametrize(("name", "damage", "count", "parts"), each(MARKED))
def test_what_is_whole_is_imported_and_the_rest_is_marked(
    whole, tmp_path, capsys, name, damage, count, parts
):
    place = copied(whole, tmp_path, name)
    damage(place)
    episodes, report = imported(place, tmp_path)
    said = "\n".join([*report, (tmp_path / "out.map.yaml").read_text()])
    assert len(episodes) == count
    for part in parts:
        assert part in said
    assert "\ntask: evil" not in said
    for episode in episodes:
        actions = episode.rows["action"][:3]
        assert any(np.array_equal(actions, e["action"][:3] / 2.0) for e in files.recorded())


# What leaves nothing to import: one error that names the file or column, and nothing is written.
REFUSED = {
    "v2.1": [
        (gone(RECORDS_21), ["episodes.jsonl cannot be read", "download it again"]),
        (cut(INFO), ["info.json cannot be read"]),
        (lambda p: (p / INFO).write_text("[" * 100_000), ["info.json cannot be read"]),
        (info(lambda c: c.pop("fps")), ["info.json: 'fps'"]),
        (info(lambda c: c.update(fps=0)), ["'fps'"]),
        (info(lambda c: c.update(fps=float("nan"))), ["'fps'"]),
        (info(lambda c: c.pop("features")), ["'features'"]),
        (info(lambda c: c.update(features=None)), ["'features'"]),
        (info(lambda c: c.update(features=[1])), ["'features'"]),
        (info(lambda c: c.update(codebase_version="v1.6")), ["another version"]),
        (info(lambda c: c.pop("codebase_version")), ["another version"]),
        (info(lambda c: c.update(chunks_size=-0.5)), ["there is no episode"]),
        (lambda p: shutil.rmtree(p / "data"), ["no column of any episode can be read"]),
    ],
    "v3.0": [
        (lambda p: shutil.rmtree(p / "meta/episodes"), ["there is no episode", "expected: 3"]),
        (dropped(RECORDS_30, "data/file_index"), [RECORDS_30, "data/file_index"]),
        (dropped(DATA_30, "episode_index"), [DATA_30, "'episode_index'"]),
    ],
    "robomimic.hdf5": [
        (cut(""), ["robomimic.hdf5 cannot be read", "copy or download it again"]),
        (lambda p: p.write_bytes(b""), ["robomimic.hdf5 cannot be read"]),
        (hdf5(lambda f: f["data"].clear()), ["there is no episode", "robomimic"]),
        (hdf5(replaced("data", 1)), ["robomimic.hdf5"]),
    ],
    "minari": [(lambda p: (p / MAIN).write_bytes(b"a"), ["main_data.hdf5 cannot be read"])],
    "d4rl.hdf5": [
        (hdf5(replaced("timeouts", np.zeros(3))), ["where its episodes end"]),
        (hdf5(replaced("timeouts", [b"a"] * 18)), ["d4rl.hdf5"]),
        (hdf5(lambda f: f.clear()), ["d4rl.hdf5"]),
    ],
    "all.npz": [
        (cut(""), ["all.npz cannot be read"]),
        (npz("", episode_ends=np.array([np.nan, 18])), ["all.npz"]),
        (npz("", episode_ends=np.array([10**18])), ["where each episode"]),
        (npz("", episode_ends=np.array(["a"])), ["where its episodes end"]),
    ],
    "zarr2": [
        (cut("meta/episode_ends/.zarray"), ["episode_ends cannot be read"]),
        (cut("meta/episode_ends/0"), ["episode_ends cannot be read"]),
    ],
    "zarr3": [(lambda p: shutil.rmtree(p / "data"), ["zarr3"])],
}


@pytest.mark.parametrize(("name", "damage", "parts"), each(REFUSED))
def test_where_nothing_is_left_one_error_says_why(whole, tmp_path, capsys, name, damage, parts):
    place = copied(whole, tmp_path, name)
    damage(place)
    code = run("import", place, tmp_path / "out.zarr")
    if code == 0:
        mapping = fill(tmp_path / "out.map.yaml", TAKEN)
        code = run("import", place, tmp_path / "out.zarr", f"map={mapping}")
    assert code == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    for part in parts:
        assert part in error
    assert not (tmp_path / "out.zarr").exists()


def test_no_cut_or_flipped_byte_ends_in_a_traceback(whole, tmp_path, capsys):
    source = np.random.default_rng(0)
    for name in WRITERS:
        for number in range(2):
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            place = copied(whole, folder, name)
            inner = sorted(f for f in place.rglob("*") if f.is_file()) or [place]
            file = inner[source.integers(len(inner))]
            content = bytearray(file.read_bytes())
            for at in source.integers(len(content), size=5):
                content[at] ^= 1 << int(source.integers(8))
            file.write_bytes(content[: source.integers(1, len(content) + 1)])
            if run("import", place, folder / "out.zarr") == 0:
                mapping = fill(folder / "out.map.yaml", TAKEN)
                run("import", place, folder / "out.zarr", f"map={mapping}")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"motors": ["pan", "tilt"]}, "[pan, tilt]"),
        ({"axes": ["pan", "tilt"]}, "[pan, tilt]"),
        ({"left": ["pan"], "right": ["tilt"]}, "[left/pan, right/tilt]"),
        ({"left": ["pan"], "right": ["pan"]}, "[left/pan, right/pan]"),
        ({"left": {"arm": ["a"], "tip": ["b"]}}, "[arm/a, tip/b]"),
        ({"tilt": 1, "pan": 0}, "[pan, tilt]"),
        ([["pan"], ["tilt"]], "[pan, tilt]"),
        (["pan"], "[action_0, action_1]"),
        (["pan", "pan"], "[action_0, action_1]"),
        (None, "[action_0, action_1]"),
        ({}, "[action_0, action_1]"),
        ({"motors": None}, "[action_0, action_1]"),
        (3, "[action_0, action_1]"),
    ],
)
def test_each_number_of_an_action_has_one_name(whole, tmp_path, names, expected):
    place = copied(whole, tmp_path, "v2.1")
    feature("action", names=names)(place)
    assert run("import", place, tmp_path / "out.zarr") == 0
    assert f"\naction_names: {expected}\n" in (tmp_path / "out.map.yaml").read_text()


@pytest.mark.parametrize("name", ["v2.1", "v3.0"])
def test_instructions_and_pictures_survive_what_is_absent(whole, tmp_path, name):
    place = copied(whole, tmp_path, name)
    if name == "v3.0":
        dropped(RECORDS_30, "tasks")(place)
    else:
        lines(lambda rows: [*[r.replace('"tasks"', '"t"') for r in rows], ""])(place)
    feature(CAMERA, shape=[1, 32, 48], names=None)(place)
    episodes, _ = imported(place, tmp_path)
    assert [episode.instruction for episode in episodes] == ["reach the goal"] * 3
    pictures = episodes[2].rows["images/front"]
    assert pictures.shape[1:] == (32, 48, 3)
    assert np.abs(pictures[:7].astype(int) - files.pictures(7)).max() < 6


@pytest.mark.parametrize("name", ["v2.1", "v3.0"])
@pytest.mark.parametrize("key", ["data_path", "video_path"])
@pytest.mark.parametrize("form", ["{}", "../{}", "data/../../{}"])
def test_files_outside_of_a_dataset_are_not_read(whole, tmp_path, capsys, name, key, form):
    place = copied(whole, tmp_path, name)
    template = json.loads((place / INFO).read_text())[key]
    outside = tmp_path / "elsewhere"
    shutil.copytree(place, outside)
    target = f"{outside if form == '{}' else 'elsewhere'}/{template}"
    edit(place / INFO, lambda c: c.update({key: form.format(target)}))
    assert run("import", place, tmp_path / "out.zarr") == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert "outside of its folder" in error
    assert "cp -rL" in error


LINKED = [
    ("v2.1", DATA_21),
    ("v2.1", VIDEO_21),
    ("v2.1", RECORDS_21),
    ("v2.1", "meta/tasks.jsonl"),
    ("v2.1", INFO),
    ("v2.1", "videos"),
    ("v3.0", DATA_30),
    ("v3.0", VIDEO_30),
    ("v3.0", RECORDS_30),
    ("v3.0", "meta/episodes"),
    ("minari", MAIN),
    ("minari", META),
    ("takes", "take_9.npz"),
    ("zarr2", "data/img/0.0.0.0"),
    ("zarr2", "data/action"),
    ("zarr3", "meta"),
    ("zarr3", "data"),
]


@pytest.mark.parametrize(("name", "file"), LINKED)
def test_links_that_lead_out_of_a_dataset_are_refused(whole, tmp_path, capsys, name, file):
    place = copied(whole, tmp_path, name)
    (place / file).rename(tmp_path / "elsewhere")
    (place / file).symlink_to(tmp_path / "elsewhere")
    assert run("import", place, tmp_path / "out.zarr") == cli.EXIT_ERROR
    assert "outside of its folder" in capsys.readouterr().err


def test_links_within_a_dataset_and_to_it_are_followed(whole, tmp_path):
    place = copied(whole, tmp_path, "v2.1")
    (place / VIDEO_21).rename(place / "one.mp4")
    (place / VIDEO_21).symlink_to(place / "one.mp4")
    (tmp_path / "link").symlink_to(place)
    assert len(imported(tmp_path / "link", tmp_path)[0]) == 3


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("brightest", [1.0, 255.0])
def test_the_zarr_of_diffusion_policy_is_imported(tmp_path, zarr_format, brightest):
    files.write_zarr(tmp_path / "pusht", zarr_format, brightest)
    answers = {"terminated": "success", "success": "success"}
    episodes, _ = imported(tmp_path / "pusht", tmp_path, **answers)
    assert [episode.success for episode in episodes] == [True, False, True]
    for number, episode in enumerate(files.recorded()):
        rows, kept = episodes[number].rows, LENGTHS[number] - (number == 1)
        np.testing.assert_array_equal(rows["state/state"][:kept], episode["seen"][:kept])
        np.testing.assert_array_equal(rows["action"][:kept], episode["action"][:kept] / 2.0)
        np.testing.assert_array_equal(rows["images/img"][:kept], files.pictures(kept))


def test_an_own_dataset_whose_description_is_damaged_is_still_called_that(folder, tmp_path, capsys):
    shutil.copytree(folder / "recorded.zarr", tmp_path / "mine")
    cut("zarr.json")(tmp_path / "mine")
    assert run("import", tmp_path / "mine", tmp_path / "out.zarr") == cli.EXIT_ERROR
    assert "restore it from a copy" in capsys.readouterr().err


def with_pictures(path: Path, **columns: np.ndarray) -> None:
    files.write_robomimic(path)
    with h5py.File(path, "r+") as file:
        for demo, steps in zip(file["data"].values(), LENGTHS, strict=True):
            for name, picture in columns.items():
                demo[f"obs/{name}"] = np.stack([picture] * steps)
                demo[f"next_obs/{name}"] = demo[f"obs/{name}"][:]


RED = np.tile([1.0, 0.0, 0.2], (32, 40, 1))


@pytest.mark.parametrize(
    ("own", "column", "expected"),
    [
        ("images/wrist", RED.astype(np.float32), (255, 0, 51)),
        ("images/wrist", (255 * RED).astype(np.float64), (255, 0, 51)),
        ("images/wrist", np.moveaxis(RED, 2, 0).astype(np.float32), (255, 0, 51)),
        ("images/wrist", np.full((32, 40, 1), 7, np.uint8), (7, 7, 7)),
        ("images/wrist_depth", np.full((32, 40, 1), 1.5, np.float32), (1500,)),
        ("images/wrist_depth", np.full((32, 40), 900, np.uint16), (900,)),
    ],
)
def test_pictures_of_robomimic_stay_pictures(tmp_path, own, column, expected):
    with_pictures(tmp_path / "a.hdf5", wrist=column)
    episodes, _ = imported(tmp_path / "a.hdf5", tmp_path)
    pictures = episodes[0].rows[own]
    assert pictures.dtype == (np.uint16 if own.endswith("depth") else np.uint8)
    assert pictures.shape[1:] == (32, 40, len(expected))
    assert (pictures == expected).all()
    mapping = tmp_path / "out.map.yaml"
    mapping.write_text(mapping.read_text().replace(own, "state/wrist"))
    words = ("import", tmp_path / "a.hdf5", tmp_path / "out.zarr", f"map={mapping}")
    assert run(*words) == cli.EXIT_ERROR


@pytest.mark.parametrize(
    "column",
    [
        RED.astype(np.float32) * 2 - 1,
        RED.astype(np.float32) * 1000,
        np.full((32, 40, 3), np.nan, np.float32),
        np.full((32, 40, 3), 900, np.uint16),
        np.full((4, 32, 40, 3), 9, np.uint8),
        np.full((32, 40, 1), -1.0, np.float32),
    ],
)
def test_pictures_that_cannot_be_converted_are_refused_by_name(tmp_path, capsys, column):
    with_pictures(tmp_path / "a.hdf5", wrist=column)
    assert run("import", tmp_path / "a.hdf5", tmp_path / "out.zarr") == 0
    mapping = fill(tmp_path / "out.map.yaml", TAKEN)
    assert "\n  images/wrist" in mapping.read_text()
    words = ("import", tmp_path / "a.hdf5", tmp_path / "out.zarr", f"map={mapping}")
    assert run(*words) == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert "'images/wrist" in error
    assert "obs/wrist" in error


@pytest.mark.parametrize("name", WRITERS)
def test_a_dataset_is_imported_by_a_path_from_where_one_is(name, whole, tmp_path, monkeypatch):
    copied(whole, tmp_path, name)
    monkeypatch.chdir(tmp_path)
    episodes, _ = imported(Path(name), Path())
    assert len(episodes) == len(LENGTHS)
