"""From the scores of all ranks to the evaluation that people read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from hpcbal.config import DnnConfig
from hpcbal.config.schema.objective import MetricConfig, predicted_by
from hpcbal.data.column_file import ColumnFile, Texts
from hpcbal.data.content import are_alike
from hpcbal.data.evaluation import SampleSet
from hpcbal.data.held_out import only_counted
from hpcbal.data.labels import class_names
from hpcbal.data.source import PreprocessedSamples
from hpcbal.data.spec import UNNAMED
from hpcbal.ensembling.answers import Kind
from hpcbal.ensembling.calibration import is_at_bound
from hpcbal.ensembling.members import ClassTally, Tally
from hpcbal.errors import DataError, InputError, OutputError
from hpcbal.events.history import LOSS, finite_metrics
from hpcbal.processes import own_stream
from hpcbal.runtime.evaluating.evaluator import Evaluator, FailedDnnsError, Outcome
from hpcbal.runtime.evaluating.predicting import Predictor, Trained, of_output
from hpcbal.runtime.evaluating.request import ENSEMBLES, VALIDATION, TrainedRun
from hpcbal.runtime.evaluating.workers import Workers
from hpcbal.safe_text import printable
from hpcbal.telemetry.files.atomic_file import to_jsonable
from hpcbal.telemetry.files.json_lines import utc_text
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.evaluation import (
    MEAN_OF_ALL,
    SELECTED,
    Bin,
    EvaluatedDnn,
    EvaluatedEnsemble,
    Evaluation,
    render_evaluation,
    write_evaluation,
)
from hpcbal.telemetry.views.table import count_text

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


@dataclass
class Kept:
    """The predictions of an ensemble for a file.

    Attributes:
        file: gets them; None on other ranks than the first.
        ensemble: whose predictions, one of `ENSEMBLES`.
        facts: what is known beside the predictions, after `evaluate_run`.
        problems: of samples that cannot be used, by position, likewise.
        trouble: why they could not be kept.
    """

    file: ColumnFile | None
    ensemble: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    trouble: OutputError | None = None

    def clear(self) -> None:
        """Forget all predictions."""
        if self.file is not None:
            self.file.clear()

    def keep(self, prefix: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Keep predictions for the next samples; what goes wrong is raised by `write`, when no rank waits."""
        if self.file is None or self.trouble is not None:
            return
        try:
            self.file.append({prefix + name: values for name, values in columns.items()})
        except OutputError as error:
            self.trouble = error

    def write(self, samples: SampleSet) -> str:
        """Write the file, on the first rank; returns its path.

        Raises:
            OutputError: if it cannot be written.
        """
        assert self.file is not None, "only the first rank writes"
        if self.trouble is not None:
            raise self.trouble
        texts: dict[str, Texts] = {
            "sample": lambda row: samples.source.where(int(samples.ids[row])),
            "problem": lambda row: self.problems.get(row, ""),
        }
        self.file.write(len(samples.ids), texts, self.facts)
        return str(self.file.path)


def evaluate_run(
    workers: Workers, predictor: Predictor, run: TrainedRun, data: EvaluationData, kept: Kept | None = None
) -> Evaluation:
    """Evaluate the DNNs of a run, without those that turn out not to work; collective over the workers.

    Args:
        kept: where predictions are kept; None: nowhere.

    Returns: equal on all ranks, except for the scores of ensembles.

    Raises:
        StoppedError: on all ranks, if one was asked to stop.
        InputError: on all ranks, if no DNN is left, or the predictions of a selection are to be kept and
            nothing was selected.
        DataError: on all ranks, if no sample can be used.
    """
    labels = data.trained.label_spec.by_name
    for output in labels:
        run = of_one_kind(run, output)
    while True:
        try:
            outcomes: dict[str, Outcome] = {}
            if kept is not None:
                kept.clear()
            for output in labels:
                kind = predicted_by(of_output(run.dnns[0], output))
                columns = columns_of(kind, data.trained, output)
                place = 0 if kept is None or len(run.dnns) == 1 else ENSEMBLES.index(kept.ensemble)
                keep = None if kept is None else partial(kept.keep, f"{output}_" if len(labels) > 1 else "")
                evaluator = Evaluator(
                    workers, predictor, run.dnns, kind, columns, output=output, keep=keep, kept=place
                )
                first = next(iter(outcomes.values()), None)
                validation = data.validation if first is None else None
                selection = None if first is None else first.selection
                outcomes[output] = evaluator.run(data.samples, validation, selection)
            break
        except FailedDnnsError as error:
            run = without_dnns(run, error.reasons)
            predictor.found.broken.clear()  # what these DNNs alone could not predict is none of it
    outcome = next(iter(outcomes.values()))
    found = _of_all(workers, predictor.found, outcome, run, data.trained)
    broken = {place: why for place, why in found.broken.items() if place[0] == data.samples.name}
    if not outcome.scores.num_samples:
        raise DataError(f"no sample of {data.samples.name} can be used: {next(iter(broken.values()), '')}")
    if kept is not None:
        kept.problems = {position: why for (_, position), why in broken.items()}
        kept.facts = _facts(run, data, outcomes, kept.ensemble)
    return _evaluation(workers.size, run, data, outcomes, found, [broken[place] for place in sorted(broken)])


def _facts(
    run: TrainedRun, data: EvaluationData, outcomes: Mapping[str, Outcome], ensemble: str
) -> dict[str, Any]:
    """Return the facts that a file of predictions holds beside them; how they are calibrated, if they are."""
    outcome = next(iter(outcomes.values()))
    shares = [1.0 / len(run.dnns)] * len(run.dnns)
    if ensemble == "greedy" and outcome.selection is not None:
        shares = list(outcome.selection.weights)
    kinds = {output or "output": predicted_by(of_output(run.dnns[0], output)) for output in outcomes}
    fitted = outcome.fitted.together[0 if len(run.dnns) == 1 else ENSEMBLES.index(ensemble)]
    name = "half_width" if "values" in kinds.values() else "temperature"
    return {
        "run": run.config.name,
        "data": data.samples.name,
        "members": {dnn.name: share for dnn, share in zip(run.dnns, shares, strict=True) if share},
        "predicts": kinds,
        "classes": list(class_names(data.trained.dataset) or ()),
        **({} if fitted is None else {name: fitted}),
    }


def columns_of(kind: Kind, trained: PreprocessedSamples, output: str = UNNAMED) -> int:
    """Return how many numbers the prediction of an item has, see `items_of`."""
    num_classes = trained.label_spec.by_name[output].num_classes or trained.num_classes
    return {"classes": num_classes, "labels": 2, "values": 1}[kind]


def of_one_kind(run: TrainedRun, output: str = UNNAMED) -> TrainedRun:
    """Return the run with the DNNs that predict the same as the first; others cannot be combined with it.

    Args:
        output: name of the output, if labels have names.
    """
    kinds = {dnn.name: predicted_by(of_output(dnn, output)) for dnn in run.dnns}
    kind, of = kinds[run.dnns[0].name], f" as {output}" if output else ""
    reason = f"it predicts {{}}{of}, but {run.dnns[0].name} predicts {kind}: evaluate it with --dnns"
    others = {name: reason.format(own) for name, own in kinds.items() if own != kind}
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


def _of_all(
    workers: Workers, mine: Trained, outcome: Outcome, run: TrainedRun, trained: PreprocessedSamples
) -> _Found:
    sums = {dnn.name: total for dnn, total in zip(run.dnns, outcome.scores.sums, strict=True)}
    metrics = {
        name: mine.describe[name](sums[name]) for name in sums if name in mine.describe and sums[name].count
    }
    weights = {name: (str(kept.which), kept.epoch) for name, kept in mine.weights.items()}
    notes = [*mine.notes, *_notes_on_code(mine, outcome, run, trained)]
    everyone = workers.share((weights, metrics, notes, mine.broken))
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
        {place: why for *_, some in reversed(everyone) for place, why in some.items()},  # of the first DNN
    )


def _notes_on_code(
    mine: Trained, outcome: Outcome, run: TrainedRun, trained: PreprocessedSamples
) -> list[str]:
    """Return a sentence for each DNN of this rank whose best weights no longer have the loss that they had.

    Both are the loss on the validation samples, so code or data have changed where nothing else shows it. Not
    known are losses that count weights of samples, of folds, and of modules, which may draw random numbers.
    """
    if trained.sample_weights is not None:
        return []
    notes = []
    for dnn, sums in zip(run.dnns, outcome.fitted.sums, strict=False):  # without sums: not calibrated
        kept = mine.weights.get(dnn.name)
        is_known = kept is not None and are_alike(kept.fingerprint, trained.fingerprint)
        if not (kept and is_known and sums.count) or dnn.fold is not None or dnn.has_own_loss:
            continue
        if why := kept.why_changed(mine.describe[dnn.name](sums)[LOSS]):
            notes.append(why)
    return notes


def _evaluation(
    num_ranks: int,
    run: TrainedRun,
    data: EvaluationData,
    outcomes: Mapping[str, Outcome],
    found: _Found,
    broken: list[str],
) -> Evaluation:
    first, outcome = next(iter(outcomes.items()))
    scores, is_values = outcome.scores, _kind(run, first) == "values"
    dnns = [_dnn(index, run, outcomes, found) for index in range(len(run.dnns))]
    ensembles = [_ensemble(place, run, outcomes) for place in range(2)] if len(dnns) > 1 else []
    shown = [each for each in ensembles if each and (each.scores or not data.samples.has_labels)]
    return Evaluation(
        run=run.config.name,
        data=data.samples.name,
        is_test=run.data != VALIDATION,
        num_samples=scores.num_samples,
        measure=_prefix(first, outcomes) + ("mse" if is_values else "accuracy"),
        more_is_better=not is_values,
        evaluated_at=utc_text(),
        num_ranks=num_ranks,
        dnns=tuple(dnns),
        ensembles=tuple(shown),
        disagreement=outcome.disagreement,
        left_out=run.left_out,
        num_broken=len(broken),
        broken=tuple(broken[:MOST_BROKEN]),
        distances=() if scores.members is None else tuple(map(tuple, scores.members.distances())),
        notes=(*run.notes, *found.notes, *_notes_on_ensembles(len(dnns), run, data, outcome)),
    )


def _kind(run: TrainedRun, output: str) -> Kind:
    return predicted_by(of_output(run.dnns[0], output))


def _dnn(index: int, run: TrainedRun, outcomes: Mapping[str, Outcome], found: _Found) -> EvaluatedDnn:
    """The row of a DNN: the scores of all its outputs, and of the first one what else is known."""
    dnn, (first, outcome) = run.dnns[index], next(iter(outcomes.items()))
    which, epoch = found.weights[dnn.name]
    metrics, shown = dict(found.metrics.get(dnn.name, {})), dict[str, float]()
    for output, each in outcomes.items():
        tally, prefix = each.scores.tallies[index], _prefix(output, outcomes)
        of_items = tally.scores() if tally is not None else {}
        beside = metrics_beside(of_items, _taken(metrics, prefix), of_output(dnn, output))
        shown |= {prefix + name: value for name, value in {**beside, **of_items}.items()}
    scores, selection = outcome.scores, outcome.selection
    return EvaluatedDnn(
        dnn.name,
        which,
        epoch,
        finite_metrics({**metrics, **shown}),
        None if selection is None else selection.weights[index],
        _calibrated(_kind(run, first), scores.calibrated[index], outcome.fitted.members[index]),
        None if scores.members is None else scores.members.contributions()[index],
        _bins(scores.tallies[index]),
        _bins(scores.calibrated[index]),
    )


def _ensemble(place: int, run: TrainedRun, outcomes: Mapping[str, Outcome]) -> EvaluatedEnsemble | None:
    """The row of an ensemble: 0 is the mean of all, 1 the greedy selection; None if nothing was selected."""
    first, outcome = next(iter(outcomes.items()))
    scores, selection, kind = outcome.scores, outcome.selection, _kind(run, first)
    if place and selection is None:
        return None
    size = sum(weight > 0.0 for weight in selection.weights) if place and selection else len(run.dnns)
    common, together = names_in_common(run.dnns), dict[str, float]()
    for output, each in outcomes.items():
        if (tally := each.scores.together[place]) is not None:
            of_mean = each.scores.metrics[place] or {}
            own = {key: value for key, value in of_mean.items() if key in common}
            beside = metrics_beside(tally.scores(), own, of_output(run.dnns[0], output))
            prefix = _prefix(output, outcomes)
            together |= {prefix + key: value for key, value in {**beside, **tally.scores()}.items()}
    uncertainty = {"between": scores.between[place] / scores.num_items}
    if kind != "values":
        uncertainty["within"] = scores.within[place] / scores.num_items
    return EvaluatedEnsemble(
        SELECTED if place else MEAN_OF_ALL,
        size,
        finite_metrics(together),
        _calibrated(kind, scores.calibrated_together[place], outcome.fitted.together[place]),
        uncertainty,
        _bins(scores.together[place]),
        _bins(scores.calibrated_together[place]),
    )


def _bins(tally: Tally | None) -> tuple[Bin, ...]:
    """The bins of confidence of predicted classes; empty where there are none."""
    return tuple(tally.reliability()) if isinstance(tally, ClassTally) else ()


def _calibrated(kind: Kind, tally: Tally | None, fitted: float | None) -> dict[str, float | None]:
    """The scores of calibrated predictions, beside how they were calibrated; empty if that is not known."""
    if fitted is None:
        return {}
    found = {} if tally is None else tally.scores()
    name = "half_width" if kind == "values" else "temperature"
    return finite_metrics({name: fitted, **{key: found[key] for key in found if key != "accuracy"}})


def _prefix(output: str, outcomes: Mapping[str, Outcome]) -> str:
    """How the names of an output's scores begin, as those of its metrics do."""
    return f"{output}_" if len(outcomes) > 1 else ""


def _taken(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    """Take the metrics whose names begin so out of all of them, without that beginning."""
    names = [name for name in metrics if name.startswith(prefix)]
    return {name.removeprefix(prefix): metrics.pop(name) for name in names}


def names_in_common(dnns: Sequence[DnnConfig]) -> set[str]:
    """The names of the scores that mean the same for all DNNs: metrics with equal settings, and the loss."""
    if any(isinstance(dnn.metrics, Mapping) or dnn.outputs for dnn in dnns):
        return set()  # predictions of an ensemble are not measured by output
    settings = [{metric.key: metric for metric in _metrics(dnn)} for dnn in dnns]
    names = {key for key, metric in settings[0].items() if all(each.get(key) == metric for each in settings)}
    losses = [(dnn.loss, dnn.loss_weights, dnn.label_smoothing) for dnn in dnns]
    return names | ({LOSS} if all(each == losses[0] for each in losses) else set())


def _metrics(dnn: DnnConfig) -> Sequence[MetricConfig]:
    assert not isinstance(dnn.metrics, Mapping), "one output, see `DnnConfig.of_output`"
    return dnn.metrics or ()


def metrics_beside(
    scores: Mapping[str, float], metrics: Mapping[str, float], dnn: DnnConfig
) -> dict[str, float]:
    """Metrics with names that no score of another meaning has: `own accuracy` for a user's `accuracy`.

    Args:
        scores: of the predictions, by name.
        metrics: of the DNN, by name.
        dnn: its settings of the metrics.
    """
    settings = {metric.key: metric for metric in _metrics(dnn)}
    shown = {}
    for key, value in metrics.items():
        given = settings.get(key)
        is_score = given is None or (given.name in _METRICS_OF_SCORES.get(key, ()) and not given.args)
        shown[key if is_score or key not in scores else f"own {key}"] = value
    return shown


def _notes_on_ensembles(num_dnns: int, run: TrainedRun, data: EvaluationData, outcome: Outcome) -> list[str]:
    trouble = outcome.scores.trouble
    notes = [f"the metrics of the ensembles are not known: {trouble}"] if trouble else []
    if run.data == VALIDATION and any(each is not None for each in outcome.fitted.members):
        notes.append("the calibration was made on these samples, so its figures are too good")
    if any(map(is_at_bound, (*outcome.fitted.members, *outcome.fitted.together))):
        notes.append(
            "a temperature of 0.0625 or 16 is at its bound: with few validation samples, or predictions that "
            "are all right or say nothing, calibrated probabilities are not to be trusted"
        )
    if data.samples.has_labels:
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


def report(
    run: TrainedRun,
    evaluation: Evaluation,
    samples: SampleSet,
    kept: Kept | None,
    *,
    as_json: bool,
    is_of_some: bool = False,
) -> None:
    """Write the predictions, print the evaluation, and write it into the run's directory if it has scores.

    Args:
        is_of_some: whether DNNs were named. The predictions of these DNNs do not replace the evaluation in
            the run's directory, which may be of all.

    Raises:
        OutputError: if it cannot be written; it has been printed then.
    """
    text = render_evaluation(evaluation)
    path = None if kept is None else kept.write(samples)
    if path is not None:
        text += f"\npredictions: {path} ({count_text(len(samples.ids), 'row')})"
    if as_json:
        place = {} if path is None else {"predictions": path}
        text = json.dumps({**to_jsonable(evaluation), **place}, indent=2)
    print(printable(text), file=own_stream("stdout"), flush=True)
    if not samples.has_labels or (kept is not None and is_of_some):
        return
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
