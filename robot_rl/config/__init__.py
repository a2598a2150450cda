"""The configuration of a command: composed by Hydra, checked, then read as typed sections."""

from robot_rl.config.cells import Cell as Cell
from robot_rl.config.cells import is_task_named as is_task_named
from robot_rl.config.cells import named_cell as named_cell
from robot_rl.config.cells import own_file as own_file
from robot_rl.config.cells import read_cell as read_cell
from robot_rl.config.composition import changed_settings as changed_settings
from robot_rl.config.composition import check_missing as check_missing
from robot_rl.config.composition import compose as compose
from robot_rl.config.composition import composed as composed
from robot_rl.config.composition import file_defaults as file_defaults
from robot_rl.config.composition import group_choices as group_choices
from robot_rl.config.composition import joined as joined
from robot_rl.config.composition import missing_keys as missing_keys
from robot_rl.config.composition import on_stepped_clock as on_stepped_clock
from robot_rl.config.sections import Settings as Settings
from robot_rl.config.sections import section as section
from robot_rl.config.values import NOT_GIVEN as NOT_GIVEN
from robot_rl.config.values import PATHS as PATHS
from robot_rl.config.values import ConfigError as ConfigError
from robot_rl.config.values import check_types as check_types
from robot_rl.config.values import check_value as check_value
from robot_rl.config.values import check_values as check_values
from robot_rl.config.values import flatten as flatten
from robot_rl.config.values import given as given
from robot_rl.config.values import parse as parse
