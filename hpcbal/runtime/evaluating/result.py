"""From the scores of all ranks to the evaluation that people read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbal.config import DnnConfig
from hpcbal.config.schema.objective import MetricConfig, predicted_by
from hpcbal.data.evaluation import SampleSet
from hpcbal.data.held_out import only_counted
from hpcbal.data.source import PreprocessedSamples
from hpcbal.data.spec import UNNAMED
from hpcbal.ensembling import ClassTally, Kind, Tally
from hpcbal.errors import DataError, InputError, OutputError
from hpcbal.events.history import LOSS, finite_metrics
from hpcbal.processes import own_stream
from hpcbal.runtime.evaluating.evaluator import Evaluator, FailedDnnsError, Outcome
from hpcbal.runtime.evaluating.predicting import Predictor, Trained, of_output
from hpcbal.runtime.evaluating.request import VALIDATION, TrainedRun
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
    labels = data.trained.label_spec.by_name
    for output in labels:
        run = of_one_kind(run, output)
    while True:
        try:
            outcomes: dict[str, Outcome] = {}
            for output in labels:
                kind = predicted_by(of_output(run.dnns[0], output))
                columns = columns_of(kind, data.trained, output)
                evaluator = Evaluator(workers, predictor, run.dnns, kind, columns, output=output)
                first = next(iter(outcomes.values()), None)
                validation = data.validation if first is None else None
                selection = None if first is None else first.selection
                outcomes[output] = evaluator.run(data.samples, validation, selection)
            break
        except FailedDnnsError as error:
            run = without_dnns(run, error.reasons)
    outcome = next(iter(outcomes.values()))
    found = _of_all(workers, predictor.found, outcome, run)
    broken = {place: why for place, why in found.broken.items() if place[0] == data.samples.name}
    if not outcome.scores.num_samples:
        raise DataError(f"no sample of {data.samples.name} can be used: {next(iter(broken.values()), '')}")
    return _evaluation(workers.size, run, data, outcomes, found, [broken[place] for place in sorted(broken)])


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
    outcomes: Mapping[str, Outcome],
    found: _Found,
    broken: list[str],
) -> Evaluation:
    first, outcome = next(iter(outcomes.items()))
    kind = predicted_by(of_output(run.dnns[0], first))
    scores, selection = outcome.scores, outcome.selection
    shares = selection.weights if selection is not None else (None,) * len(run.dnns)
    dnns = []
    for index, (dnn, share) in enumerate(zip(run.dnns, shares, strict=True)):
        which, epoch = found.weights[dnn.name]
        metrics, shown = dict(found.metrics[dnn.name]), dict[str, float]()
        for output, each in outcomes.items():
            tally = each.scores.tallies[index]
            of_items, own = (tally.scores() if tally is not None else {}), of_output(dnn, output)
            prefix = _prefix(output, outcomes)
            of_output_alone = _taken(metrics, prefix)
            of_one = {**metrics_beside(of_items, of_output_alone, own), **of_items}
            shown |= {prefix + name: value for name, value in of_one.items()}
        calibrated = _calibrated(scores.calibrated[index], outcome.fitted.members[index])
        dnns.append(
            EvaluatedDnn(
                dnn.name,
                which,
                epoch,
                finite_metrics({**metrics, **shown}),
                share,
                calibrated,
                None if scores.members is None else scores.members.contributions()[index],
                _bins(scores.tallies[index]),
                _bins(scores.calibrated[index]),
            )
        )
    ensembles = []
    if len(dnns) > 1:
        num_selected = sum(share > 0.0 for share in shares if share is not None)
        common = names_in_common(run.dnns)
        for place, (name, size) in enumerate(((MEAN_OF_ALL, len(dnns)), (SELECTED, num_selected))):
            together = dict[str, float]()
            for output, each in outcomes.items():
                tally = each.scores.together[place]
                if tally is None:
                    continue
                of_mean = each.scores.metrics[place] or {}
                own_metrics = {key: value for key, value in of_mean.items() if key in common}
                beside = metrics_beside(tally.scores(), own_metrics, of_output(run.dnns[0], output))
                of_one = {**beside, **tally.scores()}
                together |= {_prefix(output, outcomes) + key: value for key, value in of_one.items()}
            if together:
                calibrated = _calibrated(scores.calibrated_together[place], outcome.fitted.together[place])
                uncertainty = {"between": scores.between[place] / scores.num_items}
                if kind != "values":
                    uncertainty["within"] = scores.within[place] / scores.num_items
                ensembles.append(
                    EvaluatedEnsemble(
                        name,
                        size,
                        finite_metrics(together),
                        calibrated,
                        uncertainty,
                        _bins(scores.together[place]),
                        _bins(scores.calibrated_together[place]),
                    )
                )
    is_values = kind == "values"
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
        ensembles=tuple(ensembles),
        disagreement=outcome.disagreement,
        left_out=run.left_out,
        num_broken=len(broken),
        broken=tuple(broken[:MOST_BROKEN]),
        distances=() if scores.members is None else tuple(map(tuple, scores.members.distances())),
        notes=(*run.notes, *found.notes, *_notes_on_ensembles(len(dnns), run, data, outcome)),
    )


def _bins(tally: Tally | None) -> tuple[Bin, ...]:
    """The bins of confidence of predicted classes; empty where there are none."""
    return tuple(tally.reliability()) if isinstance(tally, ClassTally) else ()


def _calibrated(tally: Tally | None, fitted: float | None) -> dict[str, float | None]:
    """The scores of calibrated predictions, beside how they were calibrated; empty if that is not known."""
    if tally is None or fitted is None:
        return {}
    found = tally.scores()
    name = "half_width" if "coverage" in found else "temperature"
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
