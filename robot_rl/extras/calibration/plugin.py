"""`robot-rl calibrate`: finds a camera's pose (hand-eye calibration)."""

from robot_rl.plugins import Command, Option, Plugin

_COMMANDS = {
    "calibrate": Command(
        "robot_rl.extras.calibration.calibrate:run",
        "Work out where a camera is (hand-eye calibration).",
        "WHAT=board writes a picture of the board to PATH, to be printed. WHAT=camera works on the"
        " folder PATH: with camera=FILE arm=FILE, which configure a driver each (YAML with"
        " _target_), it takes views of the board while a person moves the arm; then it finds the"
        " camera's pose from all views in the folder and writes PATH/calibration.yaml with the"
        " residual error. hardware/cameras.md has the steps.",
        arguments=("WHAT", "PATH"),
        options=(
            Option("camera", "file with the camera's driver, to take views"),
            Option("arm", "file with the arm's driver, to take views"),
            Option(
                "mount", "camera at the wrist, or board in the gripper", "wrist", ("wrist", "fixed")
            ),
            Option(
                "intrinsics",
                "those that the camera reported, or from the views",
                "device",
                ("device", "estimate"),
            ),
            Option("columns", "squares of the board along its longer side", 7),
            Option("rows", "squares along the other", 5),
            Option("square", "side of a square in m, measured on the print", 0.03),
            Option("marker", "side of a marker in m", 0.022),
            Option("dictionary", "OpenCV's name of the set of markers", "DICT_5X5_100"),
        ),
        example="robot-rl calibrate camera views/wrist camera=camera.yaml arm=arm.yaml",
    ),
}

PLUGIN = Plugin(commands=_COMMANDS)
