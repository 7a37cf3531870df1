"""Which ensembles are too long to be simulated while somebody waits."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.control import DnnSpec

MOST_EPOCHS = 100_000
MOST_EPOCHS_OF_A_DNN = 2_000
"""A simulated epoch takes about 0.1 ms, and longer the more epochs its DNN had before."""


def too_long(specs: Sequence[DnnSpec]) -> str | None:
    """Why nobody would wait for the simulation of these DNNs up to their max_epochs; None if it is short."""
    longest = max(specs, key=lambda spec: spec.stop.max_epochs)
    most = longest.stop.max_epochs
    if most > MOST_EPOCHS_OF_A_DNN:
        of = f"{longest.dnn_id} has a stop.max_epochs of {most}"
        return f"{of}, and at most {MOST_EPOCHS_OF_A_DNN} epochs of a DNN are simulated"
    total = sum(spec.stop.max_epochs for spec in specs)
    if total > MOST_EPOCHS:
        return f"stop.max_epochs of all DNNs is {total} in sum, and at most {MOST_EPOCHS} are simulated"
    return None
