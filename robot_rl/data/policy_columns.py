"""A policy's inputs and features in a row, stored in the store's row next to the other columns.

They belong to one policy: demonstrations do not have them, and an export leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from policies.behaviour import Behaviour
from policies.columns import (
    ENCODER_ID,
    FEATURES,
    INSTRUCTION_FEATURES,
    INSTRUCTION_WIDTH,
    PLAN,
)
from robot_rl.data.schema import Array, Field, RowSchema
from robot_rl.errors import RobotRLError


def check_fit(behaviour: Behaviour, schema: RowSchema) -> None:
    """Raise `PolicyError` if a policy was made for another environment or other rows."""
    widths = {f.name: int(np.prod(f.shape)) for f in schema.fields}
    behaviour.expect(
        task=schema.task,
        control_rate_hz=schema.control_rate_hz,
        action_names=schema.action_names,
        observation={name: widths[name] for name in schema.observation_names},
    )


def stored_schema(schema: RowSchema, behaviour: Behaviour) -> RowSchema:
    """The schema of the store's rows: the environment's, plus `Behaviour.features`."""
    added = []
    if (vision := behaviour.vision) is not None:
        added += [Field(ENCODER_ID, "int64"), Field(FEATURES, "float16", (vision.features,))]
    if behaviour.uses_instruction:
        added.append(Field(INSTRUCTION_FEATURES, "float16", (INSTRUCTION_WIDTH,)))
    added += [Field(PLAN + name, "float32", (n,)) for name, n in behaviour.extras.items()]
    return schema.with_fields(added) if added else schema


def check_features(batch: Mapping[str, Array], behaviour: Behaviour) -> None:
    """Raise `RobotRLError` if a batch has features of another image encoder."""
    if ENCODER_ID not in batch:
        return
    others: Any = batch[ENCODER_ID] != behaviour.encoder_id
    if others.any():
        raise RobotRLError(
            "rows in the store have features of another image encoder",
            got=f"{int(others.sum())} of {len(others)} rows of a batch",
            expected=f"encoder_id {behaviour.encoder_id}",
            hint="go on with the cloned policy of those rows, or start a new run",
        )
