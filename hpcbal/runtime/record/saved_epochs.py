"""Which epochs of each DNN have their weights on disk, as masters report it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hpcbal.control.messages import CheckpointWritten
from hpcbal.runtime.resuming.kept_best import SavedWeights
from hpcbal.runtime.wire.protocol import BestKept
from hpcbal.telemetry.views.ensemble_status import WeightsStatus
from hpcbal.telemetry.views.summary import Number


class SavedEpochs:
    """Follows the reports of all groups.

    Args:
        found: what this start has found on disk, by DNN.
    """

    def __init__(self, found: Mapping[str, SavedWeights]) -> None:
        self._by_dnn = dict(found)

    def note_last(self, event: CheckpointWritten, *, only_progress: bool) -> None:
        """Record a checkpoint; `only_progress`: without weights, because only the best ones are kept."""
        last = None if only_progress else event.epoch
        self._by_dnn[event.dnn_id] = replace(self._of(event.dnn_id), last=last)

    def note_best(self, kept: BestKept) -> None:
        """Record best weights."""
        self._by_dnn[kept.dnn_id] = replace(
            self._of(kept.dnn_id), best=kept.epoch, metric=kept.metric, value=kept.value
        )

    def status(self, dnn_id: str) -> WeightsStatus | None:
        """For status.json; None if no weights are on disk."""
        saved = self._of(dnn_id)
        if not saved.any:
            return None
        status: WeightsStatus = {"last": saved.last}
        if saved.best:
            value = saved.value if math.isfinite(saved.value) else None
            status["best"] = {"epoch": saved.best, "metric": saved.metric, "value": value}
        return status

    def numbers(self, dnn_id: str) -> dict[str, Number]:
        """For results.csv, see `summary.SAVED`."""
        saved = self._of(dnn_id)
        return {
            "saved_best_epoch": saved.best or None,
            "saved_best_value": saved.value if math.isfinite(saved.value) else None,
            "saved_last_epoch": saved.last,
        }

    def _of(self, dnn_id: str) -> SavedWeights:
        return self._by_dnn.get(dnn_id, SavedWeights())
