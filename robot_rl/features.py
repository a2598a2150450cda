"""What a policy made of a row's images, kept in the store's row beside them.

Features are derived: a demonstration does not hold them, and an export leaves them out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.behaviour import Behaviour
from policies.vision import ENCODER_ID, FEATURES
from robot_rl.data.schema import Array, Field, RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.replay.batches import Batch


class WrongFeatures(RobotRLError):
    """Rows whose features come from another image encoder than the policy's."""


def stored_schema(schema: RowSchema, behaviour: Behaviour) -> RowSchema:
    """The schema of the store's rows: the environment's, and features where there are images."""
    if behaviour.vision is None:
        return schema
    width = behaviour.vision.features
    return schema.with_fields([Field(ENCODER_ID, "int64"), Field(FEATURES, "float16", (width,))])


def feature_columns(columns: dict[str, Array], behaviour: Behaviour) -> dict[str, Array]:
    """The columns that `stored_schema` adds, for an episode's images (T + 1, ...)."""
    if behaviour.vision is None:
        return {}
    features = behaviour.vision.encode(columns)
    return {FEATURES: features, ENCODER_ID: np.full(len(features), behaviour.encoder_id, np.int64)}


def check_features(batch: Batch, behaviour: Behaviour) -> None:
    """Check that a batch's features are all of the behaviour's image encoder.

    Raises:
        WrongFeatures: Some are not.
    """
    if behaviour.vision is None:
        return
    others: Any = batch[ENCODER_ID] != behaviour.encoder_id
    if others.any():
        raise WrongFeatures(
            "rows in the store have features of another image encoder",
            got=f"{int(others.sum())} of {len(others)} rows of a batch",
            expected=f"encoder_id {behaviour.encoder_id}",
            hint="go on with the cloned policy of those rows, or start a new run",
        )
