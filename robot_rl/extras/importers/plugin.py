"""`robot-rl import`: imports demonstrations, including foreign ones."""

from robot_rl.plugins import Command, Option, Plugin

_COMMANDS = {
    "import": Command(
        "robot_rl.extras.importers.import_dataset:import_dataset",
        "Take in demonstrations: as an episode dataset, or into a running store.",
        "PATH is what robot-rl export wrote, or of others: a LeRobot dataset (v3.0, v2.1), HDF5 of"
        " robomimic, Minari or D4RL, or .npz. For those the first call writes OUT.map.yaml, where"
        " you say what the columns are. OUT is made, never overwritten, and serves as"
        " dataset=OUT of pretrain and train; or it is a store or run directory whose server runs:"
        " then each row and annotation is added once, however often the command is repeated. What"
        " LeRobot cannot keep is missing: an episode that did not terminate loses its last step.",
        arguments=("PATH", "OUT"),
        options=(Option("map", "the mapping file, of demonstrations of others"),),
        example="robot-rl import PATH demonstrations.zarr",
    ),
}

PLUGIN = Plugin(commands=_COMMANDS)
