"""Find weights that earlier starts kept, and files that DNNs started from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hpcbal.checkpoint.best import BEST, BEST_BY, ONLY_BEST, read_best, recover_best
from hpcbal.checkpoint.reader import recover_progress
from hpcbal.checkpoint.state import TrainingState, digest_of
from hpcbal.checkpoint.writer import CURRENT, set_aside
from hpcbal.control.progress import best, evaluate
from hpcbal.errors import CheckpointError, InputError
from hpcbal.events.members import DnnSpec
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.dnn_lines import InitialWeightsLine


def changed_files(starts: Iterable[InitialWeightsLine]) -> list[str]:
    """A sentence for each DNN whose file is gone, or holds something else than at its start.

    Args:
        starts: of the DNNs that continue from a checkpoint.
    """
    digest = cache(_digest_or_problem)
    found = []
    for start in starts:
        now = digest(start.path)
        if now != start.digest:
            what = "has changed" if len(now) == len(start.digest) else f"cannot be read any more ({now})"
            found.append(
                f"{start.path}: {what} since {start.dnn_id} started from it; {start.dnn_id} continues from "
                "its checkpoint, which does not need it"
            )
    return found


def _digest_or_problem(path: str) -> str:
    try:
        return digest_of(Path(path))
    except OSError as error:
        return error.strerror or str(error)


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


def recover_dnn(
    run: RunDirectory, spec: DnnSpec, keep: str, *, was_saved: bool, had_best: bool
) -> tuple[TrainingState | None, SavedWeights, list[str]]:
    """Find the newest checkpoint of a DNN that training can go on from, and its best weights.

    Args:
        keep: `checkpoint.keep`.
        was_saved: whether the ledger says that there was a checkpoint.
        had_best: the same of best weights.

    Returns:
        The progress in the checkpoint, None if there is none; what is on disk; and warnings for people.

    Raises:
        InputError: if training would have to continue from weights that are not kept.
        CheckpointError: if a file cannot be opened, renamed or removed.
    """
    directory = run.job(spec.dnn_id)
    state, warnings = recover_progress(directory)
    is_lost = bool(warnings) or (was_saved and state is None)
    weights, of_best = recover_weights(run, spec, state, keep, is_lost)
    if had_best and keep != "last" and weights.last is not None and not weights.best:
        lost = f"the best weights of {CURRENT} are lost; the last ones, of epoch {weights.last}, are left"
        warnings.append("; ".join([*of_best, lost]) if of_best else f"{directory / BEST}: {lost}")
        of_best = ()
    if state is None or weights.any or state.name != spec.dnn_id:
        return state, weights, [*warnings, *of_best]
    try:  # its history is of no use without weights, and would be taken for a checkpoint
        set_aside(directory / CURRENT)
    except OSError as error:
        raise CheckpointError(
            f"{directory / CURRENT}: cannot be renamed ({error.strerror or error}); restore access to its "
            "directory"
        ) from error
    state, others = recover_progress(directory)
    weights, of_older = recover_weights(run, spec, state, keep, True)
    goes_on = "starts again" if state is None else f"continues from epoch {state.epoch}"
    why = "; ".join(of_best) or f"{BEST} is missing"
    gone = f"the best weights, the only ones that were kept, are gone ({why}); {spec.dnn_id} {goes_on}"
    return state, weights, [*warnings, f"{directory / CURRENT}: {gone}", *others, *of_older]


def recover_weights(
    run: RunDirectory, spec: DnnSpec, state: TrainingState | None, keep: str, is_lost: bool
) -> tuple[SavedWeights, Sequence[str]]:
    """Make the best weights on disk those of the best epoch that the checkpoint has seen.

    Args:
        state: the progress in the checkpoint; None if there is none.
        is_lost: whether a newer checkpoint is lost.
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
    goes_on = state is not None and evaluate(spec.stop, state.history) is None
    if state is not None and only_best and goes_on and read_best(directory, with_arrays=False)[0] is not None:
        raise InputError(
            f"{directory}: {spec.dnn_id} was done after epoch {state.epoch} and only its best weights were "
            "kept (checkpoint.keep: best), so its training cannot continue; give stop.max_epochs as it was, "
            "or train it under another name"
        )
    last = None if state is None or only_best else state.epoch
    if keep == "last" and not only_best:
        return SavedWeights(last=last), ()  # they are removed once nothing refuses the start
    epoch = 0 if state is None else best(spec.stop, state.history).epoch
    found, warnings = recover_best(directory, state, epoch, is_lost=is_lost)
    if found is None:
        return SavedWeights(last=last), warnings
    metric = str(found.meta[BEST_BY])
    value = found.history[-1].metrics.get(metric, float("nan"))
    return SavedWeights(found.epoch, metric, value, last), warnings
