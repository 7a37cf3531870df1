"""What a checkpoint holds: everything a DNN needs to go on as if it had never stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import CheckpointError
from hpcbal.values import EpochRecord, Position


@dataclass(frozen=True, slots=True)
class TrainingState:
    """One DNN between two steps.

    Attributes:
        dnn_id: the DNN's name in the config.
        epoch: epochs completed, >= 0.
        position: the next sample of the shared stream that this DNN trains on.
        history: one record per completed epoch, oldest first.
        arrays: weights and optimiser state under path-like names ("weights/...", "optimizer/..."); numbers
            and booleans of any shape, never changed after the state was made. Empty if only the progress
            was read.
        fingerprint: of the data; training must not go on with other data.
    """

    dnn_id: str
    epoch: int
    position: Position
    history: tuple[EpochRecord, ...] = ()
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    fingerprint: str = ""


def progress_to_json(state: TrainingState) -> str:
    """All of `state` but the arrays. Floats survive exactly, NaN included."""
    return json.dumps(
        {
            "dnn_id": state.dnn_id,
            "epoch": state.epoch,
            "pass_index": state.position.pass_index,
            "offset": state.position.offset,
            "fingerprint": state.fingerprint,
            "history": [
                {
                    "epoch": record.epoch,
                    "pass_index": record.pass_index,
                    "metrics": {name: float(value) for name, value in record.metrics.items()},
                    "seconds": float(record.seconds),
                }
                for record in state.history
            ],
        }
    )


def progress_from_json(text: str, arrays: Mapping[str, NDArray[np.generic]]) -> TrainingState:
    """The opposite of `progress_to_json`.

    Raises:
        CheckpointError: if a field is missing or of another type.
    """
    try:
        fields = json.loads(text)
        return TrainingState(
            dnn_id=str(fields["dnn_id"]),
            epoch=int(fields["epoch"]),
            position=Position(int(fields["pass_index"]), int(fields["offset"])),
            history=tuple(
                EpochRecord(
                    epoch=int(record["epoch"]),
                    pass_index=int(record["pass_index"]),
                    metrics={str(name): float(value) for name, value in record["metrics"].items()},
                    seconds=float(record["seconds"]),
                )
                for record in fields["history"]
            ),
            arrays=arrays,
            fingerprint=str(fields["fingerprint"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"its progress record cannot be understood ({error!r})") from error
