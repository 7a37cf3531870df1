"""From the scores of all ranks to the evaluation that people read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbal.config import DnnConfig
from hpcbal.config.schema.objective import predicted_by
from hpcbal.data.evaluation import SampleSet
from hpcbal.data.held_out import only_counted
from hpcbal.data.source import PreprocessedSamples
from hpcbal.ensembling import Kind
from hpcbal.errors import DataError, InputError, OutputError
from hpcbal.events.history import LOSS, finite_metrics
from hpcbal.processes import own_stream
from hpcbal.runtime.evaluating.evaluator import Evaluator, FailedDnnsError, Outcome
from hpcbal.runtime.evaluating.predicting import Predictor, Trained
from hpcbal.runtime.evaluating.request import VALIDATION, TrainedRun
from hpcbal.runtime.evaluating.workers import Workers
from hpcbal.safe_text import printable
from hpcbal.telemetry.files.atomic_file import to_jsonable
from hpcbal.telemetry.files.json_lines import utc_text
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.evaluation import (
    MEAN_OF_ALL,
    SELECTED,
    EvaluatedDnn,
    EvaluatedEnsemble,
    Evaluation,
    render_evaluation,
    write_evaluation,
)

MOST_BROKEN = 20
"""Broken samples that are named."""

_METRICS_OF_SCORES = {
    "accuracy": ("accuracy",),
    "mse": ("mse", "mean_squared_error"),
    "mae": ("mae", "mean_absolute_error"),
}
"""Metrics of Keras that mean the same as a score of predictions, by the score's name."""


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """The samples of an evaluation, on one rank.

    Attributes:
        trained: the samples of the run.
        samples: what to evaluate on.
        validation: where to select DNNs; None: nowhere.
    """

    trained: PreprocessedSamples
    samples: SampleSet
    validation: SampleSet | None


def evaluate_run(workers: Workers, predictor: Predictor, run: TrainedRun, data: EvaluationData) -> Evaluation:
    """Evaluate the DNNs of a run, without those that turn out not to work; collective over the workers.

    Returns: equal on all ranks, except for the scores of ensembles.

    Raises:
        StoppedError: on all ranks, if one was asked to stop.
        InputError: on all ranks, if no DNN is left.
        DataError: on all ranks, if no sample can be used.
    """
    run = of_one_kind(run)
    kind = predicted_by(run.dnns[0])
    num_columns = columns_of(kind, data.trained)
    while True:
        try:
            evaluator = Evaluator(workers, predictor, run.dnns, kind, num_columns)
            outcome = evaluator.run(data.samples, data.validation)
            break
        except FailedDnnsError as error:
            run = without_dnns(run, error.reasons)
    found = _of_all(workers, predictor.found, outcome, run)
    broken = {place: why for place, why in found.broken.items() if place[0] == data.samples.name}
    if not outcome.scores.num_samples:
        raise DataError(f"no sample of {data.samples.name} can be used: {next(iter(broken.values()), '')}")
    return _evaluation(workers.size, run, data, outcome, found, [broken[place] for place in sorted(broken)])


def columns_of(kind: Kind, trained: PreprocessedSamples) -> int:
    """Return how many numbers the prediction of an item has, see `items_of`."""
    return {"classes": trained.num_classes, "labels": 2, "values": 1}[kind]


def of_one_kind(run: TrainedRun) -> TrainedRun:
    """Return the run with the DNNs that predict the same as the first; others cannot be combined with it."""
    kind = predicted_by(run.dnns[0])
    reason = f"it predicts {{}}, but {run.dnns[0].name} predicts {kind}: evaluate it with --dnns"
    others = {dnn.name: reason.format(predicted_by(dnn)) for dnn in run.dnns if predicted_by(dnn) != kind}
    return without_dnns(run, others) if others else run


def without_dnns(run: TrainedRun, reasons: Mapping[str, str]) -> TrainedRun:
    """Return the run without some DNNs.

    Args:
        reasons: why they are left out, by name.

    Raises:
        InputError: if none is left.
    """
    left_out = {**run.left_out}
    for name, reason in reasons.items():
        left_out[name] = reason.removeprefix(f"DNN {name}: ")
    dnns = tuple(dnn for dnn in run.dnns if dnn.name not in reasons)
    if not dnns:
        shown = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError(f"{run.root}: no DNN can be evaluated: {shown}")
    return replace(run, dnns=dnns, left_out=left_out)


@dataclass(frozen=True, slots=True)
class _Found:
    """Facts about the DNNs and the samples from all ranks.

    Attributes:
        weights: which weights each DNN has, and their epoch, by name.
        metrics: of each DNN, by name.
        notes, broken: see `Trained`.
    """

    weights: Mapping[str, tuple[str, int]]
    metrics: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...]
    broken: Mapping[tuple[str, int], str]


def _of_all(workers: Workers, mine: Trained, outcome: Outcome, run: TrainedRun) -> _Found:
    sums = {dnn.name: total for dnn, total in zip(run.dnns, outcome.scores.sums, strict=True)}
    metrics = {name: mine.describe[name](sums[name]) for name in sums if name in mine.describe}
    weights = {name: (str(kept.which), kept.epoch) for name, kept in mine.weights.items()}
    everyone = workers.share((weights, metrics, mine.notes, mine.broken))
    changed = [
        f"the run saved other weights of {name} during this evaluation: it mixes epochs "
        f"{' and '.join(map(str, epochs))}; evaluate again"
        for name in sums
        if len(epochs := sorted({some[name][1] for some, _, _, _ in everyone if name in some})) > 1
    ]
    return _Found(
        {name: kept for some, _, _, _ in everyone for name, kept in some.items()},
        {name: values for _, some, _, _ in everyone for name, values in some.items()},
        (*changed, *dict.fromkeys(note for _, _, some, _ in everyone for note in some)),
        {place: why for _, _, _, some in everyone for place, why in some.items()},
    )


def _evaluation(
    num_ranks: int,
    run: TrainedRun,
    data: EvaluationData,
    outcome: Outcome,
    found: _Found,
    broken: list[str],
) -> Evaluation:
    scores, selection = outcome.scores, outcome.selection
    shares = selection.weights if selection is not None else (None,) * len(run.dnns)
    dnns = []
    for dnn, tally, share in zip(run.dnns, scores.tallies, shares, strict=True):
        which, epoch = found.weights[dnn.name]
        of_items = tally.scores() if tally is not None else {}
        shown = {**metrics_beside(of_items, found.metrics[dnn.name], dnn), **of_items}
        dnns.append(EvaluatedDnn(dnn.name, which, epoch, finite_metrics(shown), share))
    ensembles = []
    if len(dnns) > 1:
        num_selected = sum(share > 0.0 for share in shares if share is not None)
        common = names_in_common(run.dnns)
        for name, size, tally, metrics in zip(
            (MEAN_OF_ALL, SELECTED),
            (len(dnns), num_selected),
            scores.together,
            scores.metrics,
            strict=True,
        ):
            if tally is not None:
                own = {key: value for key, value in (metrics or {}).items() if key in common}
                shown = {**metrics_beside(tally.scores(), own, run.dnns[0]), **tally.scores()}
                ensembles.append(EvaluatedEnsemble(name, size, finite_metrics(shown)))
    is_values = predicted_by(run.dnns[0]) == "values"
    return Evaluation(
        run=run.config.name,
        data=data.samples.name,
        is_test=run.data != VALIDATION,
        num_samples=scores.num_samples,
        measure="mse" if is_values else "accuracy",
        more_is_better=not is_values,
        evaluated_at=utc_text(),
        num_ranks=num_ranks,
        dnns=tuple(dnns),
        ensembles=tuple(ensembles),
        disagreement=outcome.disagreement,
        left_out=run.left_out,
        num_broken=len(broken),
        broken=tuple(broken[:MOST_BROKEN]),
        notes=(*run.notes, *found.notes, *_notes_on_ensembles(len(dnns), run, data, outcome)),
    )


def names_in_common(dnns: Sequence[DnnConfig]) -> set[str]:
    """The names of the scores that mean the same for all DNNs: metrics with equal settings, and the loss."""
    settings = [{metric.key: metric for metric in dnn.metrics or ()} for dnn in dnns]
    names = {key for key, metric in settings[0].items() if all(each.get(key) == metric for each in settings)}
    losses = [(dnn.loss, dnn.label_smoothing) for dnn in dnns]
    return names | ({LOSS} if all(each == losses[0] for each in losses) else set())


def metrics_beside(
    scores: Mapping[str, float], metrics: Mapping[str, float], dnn: DnnConfig
) -> dict[str, float]:
    """Metrics with names that no score of another meaning has: `own accuracy` for a user's `accuracy`.

    Args:
        scores: of the predictions, by name.
        metrics: of the DNN, by name.
        dnn: its settings of the metrics.
    """
    settings = {metric.key: metric for metric in dnn.metrics or ()}
    shown = {}
    for key, value in metrics.items():
        given = settings.get(key)
        is_score = given is None or (given.name in _METRICS_OF_SCORES.get(key, ()) and not given.args)
        shown[key if is_score or key not in scores else f"own {key}"] = value
    return shown


def _notes_on_ensembles(num_dnns: int, run: TrainedRun, data: EvaluationData, outcome: Outcome) -> list[str]:
    trouble = outcome.scores.trouble
    notes = [f"the metrics of the ensembles are not known: {trouble}"] if trouble else []
    notes += only_counted(data.samples.source.dataset, data.trained.dataset, data.samples.name)
    return notes + _notes_on_selection(num_dnns, run, data, outcome)


def _notes_on_selection(num_dnns: int, run: TrainedRun, data: EvaluationData, outcome: Outcome) -> list[str]:
    if num_dnns < 2:
        return []
    if data.validation is None:
        return ["nothing was selected: the run has no validation samples"]
    if outcome.selection is None:
        return ["nothing was selected: the predictions of the validation samples take more than 1 GiB"]
    if run.data == VALIDATION:
        return ["the greedy selection was made on these samples, so its scores are too good"]
    return []


def report(run: TrainedRun, evaluation: Evaluation, *, as_json: bool) -> None:
    """Print the evaluation, and write it into the run's directory.

    Raises:
        OutputError: if it cannot be written; it has been printed then.
    """
    text = json.dumps(to_jsonable(evaluation), indent=2) if as_json else render_evaluation(evaluation)
    print(printable(text), file=own_stream("stdout"), flush=True)
    directory = RunDirectory(run.root)
    try:
        write_evaluation(directory.evaluation, evaluation)
    except OutputError as error:
        reason = getattr(error.__cause__, "strerror", None) or error.__cause__
        raise OutputError(
            f"{directory.evaluation}: cannot write: {reason}; what was printed is complete, but 'hpcbal "
            "report' does not show it"
        ) from error
    if not as_json:
        seen = f"\nfile: {directory.evaluation}, shown by 'hpcbal report'"
        print(printable(seen), file=own_stream("stdout"), flush=True)
