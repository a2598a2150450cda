"""Limits that hold whatever the policy asks for; the same module guards simulated and real arms."""

from robot_rl.safety.commands import CommandRefused as CommandRefused
from robot_rl.safety.commands import Mode as Mode
from robot_rl.safety.commands import SoleSource as SoleSource
from robot_rl.safety.guard import ArmGuard as ArmGuard
from robot_rl.safety.limiter import CartesianLimiter as CartesianLimiter
from robot_rl.safety.limiter import check_action as check_action
from robot_rl.safety.limits import ActionRefused as ActionRefused
from robot_rl.safety.limits import ArmLimits as ArmLimits
from robot_rl.safety.limits import CartesianLimits as CartesianLimits
from robot_rl.safety.limits import Compliance as Compliance
from robot_rl.safety.limits import MeasurementRefused as MeasurementRefused
from robot_rl.safety.limits import check_bounds as check_bounds
from robot_rl.safety.limits import refuse_stiff_contact as refuse_stiff_contact
from robot_rl.safety.measurement import ArmState as ArmState
from robot_rl.safety.measurement import Plausibility as Plausibility
from robot_rl.safety.reset_motion import ResetOutcome as ResetOutcome
from robot_rl.safety.reset_motion import Resets as Resets
from robot_rl.safety.reset_motion import checked_reset_joints as checked_reset_joints
from robot_rl.safety.reset_motion import checked_reset_pose as checked_reset_pose
from robot_rl.safety.reset_motion import sole_reset_end as sole_reset_end
from robot_rl.safety.reset_way import ForwardKinematics as ForwardKinematics
from robot_rl.safety.reset_way import ResetOptions as ResetOptions
from robot_rl.safety.stop_latch import StopLatch as StopLatch
from robot_rl.safety.stop_latch import StopNotKept as StopNotKept
from robot_rl.safety.stop_latch import default_stop_folder as default_stop_folder
from robot_rl.safety.stop_latch import kept_stop as kept_stop
