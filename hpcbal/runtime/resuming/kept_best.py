"""What a start finds of the weights that earlier starts have kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.checkpoint import TrainingState, recover_best
from hpcbal.checkpoint.best import BEST_BY, ONLY_BEST
from hpcbal.control import DnnSpec
from hpcbal.control.stopping import best, evaluate
from hpcbal.errors import InputError
from hpcbal.telemetry import RunDirectory


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """Which epochs of a DNN have their weights on disk.

    Attributes:
        best: its best epoch by its stop rule; 0: none.
        metric: the metric that says so; empty without a best epoch.
        value: its value after that epoch; NaN without a best epoch.
        last: the epoch of its checkpoint; None if there is no checkpoint, or it holds no weights.
    """

    best: int = 0
    metric: str = ""
    value: float = float("nan")
    last: int | None = None

    @property
    def any(self) -> bool:
        """Whether any weights are on disk."""
        return bool(self.best) or self.last is not None


def recover_weights(
    run: RunDirectory, spec: DnnSpec, state: TrainingState | None, keep: str
) -> tuple[SavedWeights, Sequence[str]]:
    """Make the best weights on disk those of the best epoch that the checkpoint has seen.

    Args:
        state: the progress in the checkpoint; None if there is none.
        keep: `checkpoint.keep`; with `last`, best weights do not count.

    Returns:
        What is on disk now, and warnings for people.

    Raises:
        InputError: if training would have to continue from weights that are not kept.
        CheckpointError: if a file cannot be opened, renamed or removed.
    """
    directory = run.job(spec.dnn_id)
    if state is not None and state.name != spec.dnn_id:
        return SavedWeights(), ()  # the caller refuses it
    only_best = state is not None and bool(state.meta.get(ONLY_BEST))
    if state is not None and only_best and evaluate(spec.stop, state.history) is None:
        raise InputError(
            f"{directory}: {spec.dnn_id} was done after epoch {state.epoch} and only its best weights were "
            "kept (checkpoint.keep: best), so its training cannot continue; give stop.max_epochs as it was, "
            "or train it under another name"
        )
    last = None if state is None or only_best else state.epoch
    if keep == "last" and not only_best:
        return SavedWeights(last=last), ()  # they are removed once nothing refuses the start
    epoch = 0 if state is None else best(spec.stop, state.history).epoch
    found, warnings = recover_best(directory, state, epoch)
    if found is None:
        if only_best:
            gone = "the best weights, the only ones that were kept, are gone"
            warnings.append(f"{directory}: {gone}; {spec.dnn_id} starts again")
        return SavedWeights(last=last), warnings
    metric = str(found.meta[BEST_BY])
    return SavedWeights(epoch, metric, found.history[-1].metrics.get(metric, float("nan")), last), warnings
