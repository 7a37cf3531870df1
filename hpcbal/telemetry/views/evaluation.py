"""evaluation.json and the table of `hpcbal evaluate`: how good trained DNNs and their ensemble are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from hpcbal.errors import InputError
from hpcbal.telemetry.files.atomic_file import cannot_read, read_file, write_json_atomic
from hpcbal.telemetry.views.folds import fold_sentences
from hpcbal.telemetry.views.table import count_text, format_table, number_text

EVALUATION_SCHEMA = 1
Bin: TypeAlias = tuple[int, float, float]
"""Items of a bin of confidence, their mean confidence, and the share of them that is right."""

MEAN_OF_ALL = "mean of all"
SELECTED = "greedy selection"
_MOST_NOTED = 5
_TITLES: Mapping[str, str] = {"calibration_error": "calibration error", "half_width": "90 % within +-"}


@dataclass(frozen=True, slots=True)
class EvaluatedDnn:
    """One trained DNN.

    Attributes:
        name: its name in the config.
        weights: `best` or `last`.
        epoch: completed epochs of these weights.
        scores: loss and metrics as in training, and what the predictions show, by name; None stands for NaN.
        share: its weight in the greedy selection, 0..1; None if nothing was selected.
        calibrated: of classes and labels, the `temperature` with the least negative log-likelihood on the
            validation set, and with it `nll` and `calibration_error`; of values, the `half_width` of the
            interval that shall hold 90 % of them, and its `coverage`. Empty if it is not known.
        contribution: by how much the negative log-likelihood, or the mean squared error, of the mean of all
            DNNs rises without this one; below 0 if it falls. None for fewer than two DNNs.
        reliability: of classes and labels, of each bin of confidence that is not empty its items, mean
            confidence and accuracy.
        reliability_calibrated: the same of calibrated predictions.
    """

    name: str
    weights: str
    epoch: int
    scores: Mapping[str, float | None]
    share: float | None = None
    calibrated: Mapping[str, float | None] = field(default_factory=dict)
    contribution: float | None = None
    reliability: tuple[Bin, ...] = ()
    reliability_calibrated: tuple[Bin, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluatedEnsemble:
    """DNNs that predict together: the (weighted) mean of what they predict.

    Attributes:
        name: how the DNNs were chosen.
        num_dnns: how many have a weight above 0.
        scores: by name.
        calibrated: see `EvaluatedDnn`.
        uncertainty: mean over items, `within` and `between` its DNNs, in nats; of values the variance
            `between` them alone.
        reliability, reliability_calibrated: see `EvaluatedDnn`.
    """

    name: str
    num_dnns: int
    scores: Mapping[str, float | None]
    calibrated: Mapping[str, float | None] = field(default_factory=dict)
    uncertainty: Mapping[str, float | None] = field(default_factory=dict)
    reliability: tuple[Bin, ...] = ()
    reliability_calibrated: tuple[Bin, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of one `hpcbal evaluate`.

    Attributes:
        run: name of the run.
        data: what the DNNs were evaluated on, for people.
        is_test: whether no DNN has seen these samples, as far as the configuration says so.
        num_samples: samples that were evaluated.
        measure: the score by which DNNs and ensembles are compared.
        more_is_better: whether more of it is better.
        evaluated_at: UTC time, as text.
        num_ranks: ranks that computed.
        dnns: in the order of the config.
        ensembles: without any if fewer than two DNNs were evaluated.
        disagreement: share of items for which two DNNs predict different classes, averaged over all pairs;
            None for fewer than two DNNs, or if they predict no classes.
        distances: for each two DNNs, the share of items for which they predict different classes, or the root
            of the mean squared difference of their values; empty for very many DNNs.
        left_out: why DNNs were left out, by name.
        num_broken: samples that could not be used.
        broken: some of them, for people.
        notes: sentences for people.
    """

    run: str
    data: str
    is_test: bool
    num_samples: int
    measure: str
    more_is_better: bool
    evaluated_at: str
    num_ranks: int
    dnns: tuple[EvaluatedDnn, ...]
    ensembles: tuple[EvaluatedEnsemble, ...] = ()
    disagreement: float | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    num_broken: int = 0
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    distances: tuple[tuple[float, ...], ...] = ()

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of all scores, in display order."""
        every: list[EvaluatedDnn | EvaluatedEnsemble] = [*self.dnns, *self.ensembles]
        return tuple(dict.fromkeys(name for each in every for name in each.scores))

    @property
    def loss_name(self) -> str:
        """Return the score that contributions are of."""
        return "mse" if self.measure.endswith("mse") else "nll"

    @property
    def best_dnn(self) -> EvaluatedDnn | None:
        """The DNN with the best measure, the first of equals; None if none has one."""
        measured = [(dnn.scores.get(self.measure), dnn) for dnn in self.dnns]
        known = [(value, dnn) for value, dnn in measured if value is not None]
        sign = -1.0 if self.more_is_better else 1.0
        return min(known, key=lambda pair: sign * pair[0])[1] if known else None

    def verdicts(self) -> tuple[str, ...]:
        """For each ensemble a sentence: whether it is better than its best DNN on these samples."""
        best = self.best_dnn
        sentences = []
        for ensemble in self.ensembles:
            value = ensemble.scores.get(self.measure)
            if best is None or value is None:
                continue
            single = best.scores[self.measure]
            assert single is not None
            gain = value - single if self.more_is_better else single - value
            verb = "beats" if gain > 0.0 else "equals" if gain == 0.0 else "does not beat"
            numbers = f"{self.measure} {value:.4f} and {single:.4f}"
            sentences.append(
                f"the {ensemble.name} ({count_text(ensemble.num_dnns, 'DNN')}) {verb} the best DNN, "
                f"{best.name}: {numbers}"
            )
        return tuple(sentences)


def title_of(score: str) -> str:
    """A score's name for people."""
    return _TITLES.get(score, score)


def write_evaluation(path: str | os.PathLike[str], evaluation: Evaluation) -> None:
    """Replace `path` as a whole.

    Raises:
        OutputError: if it cannot be written.
    """
    write_json_atomic(path, {"schema": EVALUATION_SCHEMA, **_fields(evaluation)}, durable=True)


def _fields(evaluation: Evaluation) -> dict[str, Any]:
    return {name: getattr(evaluation, name) for name in Evaluation.__dataclass_fields__}


def read_evaluation(path: Path) -> Evaluation | None:
    """The evaluation of a run; None if there is none.

    Raises:
        InputError: if the file cannot be read, is damaged, or from another version.
    """
    try:
        found = json.loads(read_file(path))
        if found.pop("schema") != EVALUATION_SCHEMA:
            raise ValueError("it has another schema")
        return evaluation_of(found)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(cannot_read(path, error)) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: not an evaluation of this hpcbal ({error}); write it again with 'hpcbal evaluate'"
        ) from error


def evaluation_of(plain: Mapping[str, Any]) -> Evaluation:
    """Return an evaluation that was written as plain values.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: if it is none.
    """
    evaluation = Evaluation(
        **{
            **plain,
            "dnns": tuple(EvaluatedDnn(**_with_bins(dnn)) for dnn in plain["dnns"]),
            "ensembles": tuple(EvaluatedEnsemble(**_with_bins(each)) for each in plain["ensembles"]),
            "distances": tuple(tuple(map(float, row)) for row in plain.get("distances", ())),
            "broken": tuple(plain["broken"]),
            "notes": tuple(plain["notes"]),
        }
    )
    render_evaluation(evaluation)  # values of the wrong type show here, not on a page
    return evaluation


def _with_bins(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a DNN or an ensemble, with bins as they are in the dataclasses."""
    bins = {
        name: tuple((int(count), float(confidence), float(right)) for count, confidence, right in found)
        for name, found in plain.items()
        if name.startswith("reliability")
    }
    return {**plain, **bins}


def render_evaluation(evaluation: Evaluation) -> str:
    """The table of all DNNs and ensembles, and what people should know about it."""
    names = evaluation.score_names
    with_shares = any(dnn.share is not None for dnn in evaluation.dnns)
    with_contributions = any(dnn.contribution is not None for dnn in evaluation.dnns)
    more = [*(["share"] if with_shares else []), *(["contribution"] if with_contributions else [])]
    headers = ["name", "weights", "epoch", *map(title_of, names), *more]
    rows = [
        [dnn.name, dnn.weights, str(dnn.epoch), *_numbers(dnn.scores, names)]
        + ([number_text(dnn.share, 2)] if with_shares else [])
        + ([number_text(dnn.contribution)] if with_contributions else [])
        for dnn in evaluation.dnns
    ]
    together = [
        [f"{each.name} ({each.num_dnns})", "", "", *_numbers(each.scores, names), *([""] * len(more))]
        for each in evaluation.ensembles
    ]
    lines = [f"{evaluation.run} on {evaluation.data}: {count_text(evaluation.num_samples, 'sample')}", ""]
    lines += format_table(headers, [*rows, *together], right=range(2, len(headers)))
    lines += _calibration(evaluation)
    if evaluation.disagreement is not None:
        lines += [
            "",
            f"two DNNs disagree on {100.0 * evaluation.disagreement:.2f} % of the predictions, "
            "averaged over all pairs",
        ]
    if with_contributions:
        loss = "mean squared error" if evaluation.loss_name == "mse" else "negative log-likelihood"
        lines += ["", f"contribution: how much the {loss} of the mean of all rises without the DNN"]
    scores = {dnn.name: dnn.scores.get(evaluation.measure) for dnn in evaluation.dnns}
    lines += ["", *evaluation.verdicts(), *fold_sentences(scores, evaluation.measure)]
    lines += [f"left out: {name}: {reason}" for name, reason in evaluation.left_out.items()]
    if evaluation.num_broken:
        shown = "; ".join(evaluation.broken[:_MOST_NOTED])
        dots = " ..." if evaluation.num_broken > _MOST_NOTED else ""
        lines.append(f"left out {count_text(evaluation.num_broken, 'sample')}: {shown}{dots}")
    lines += [f"note: {note}" for note in evaluation.notes]
    return "\n".join(lines).rstrip("\n")


def _calibration(evaluation: Evaluation) -> list[str]:
    """The table of calibrated predictions, and how uncertain ensembles are; empty if nothing is known."""
    named: list[tuple[str, EvaluatedDnn | EvaluatedEnsemble]] = [
        *((dnn.name, dnn) for dnn in evaluation.dnns),
        *((f"{each.name} ({each.num_dnns})", each) for each in evaluation.ensembles),
    ]
    shown = [(name, each.calibrated) for name, each in named if each.calibrated]
    if not shown:
        return []
    names = tuple(dict.fromkeys(key for _, found in shown for key in found))
    headers = ["calibrated on the validation set", *map(title_of, names)]
    rows = [[name, *_numbers(found, names)] for name, found in shown]
    lines = ["", *format_table(headers, rows, right=range(1, len(headers))), ""]
    for each in evaluation.ensembles:
        between, within = each.uncertainty.get("between"), each.uncertainty.get("within")
        if between is None:
            continue
        text = f"uncertainty of the {each.name}: "
        if within is None:
            lines.append(
                f"{text}its DNNs vary by {number_text(max(0.0, between) ** 0.5)} (standard deviation)"
            )
        else:
            lines.append(
                f"{text}{number_text(within)} nats within its DNNs, {number_text(between)} between them"
            )
    return lines


def _numbers(scores: Mapping[str, float | None], names: Sequence[str]) -> list[str]:
    return [number_text(scores.get(name)) for name in names]
