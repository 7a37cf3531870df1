"""Evaluate DNNs and their ensembles on all ranks together, with bounded memory.

First the DNNs predict the validation samples, for the greedy selection: it needs one number of each DNN and
item. Then they predict the samples that are evaluated, a chunk at a time. Of each chunk every rank holds the
sums over its DNNs of what they predict, and which classes they predict: at most `CHUNK_BYTES`. What is left
of a chunk are sums over its samples, so no probability is kept, and the number of samples has no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.config import DnnConfig
from hpcbal.data.evaluation import SampleSet
from hpcbal.data.spec import UNNAMED
from hpcbal.ensembling.answers import (
    Kind,
    agreeing_pairs,
    answers_of,
    disagreement,
    items_per_sample,
    items_shape,
    pieces_of_rank,
)
from hpcbal.ensembling.calibration import calibrated_tally, calibration_evidence, entropies
from hpcbal.ensembling.columns import columns_of_samples, prediction_columns
from hpcbal.ensembling.members import MemberTally, Tally, tally_of
from hpcbal.ensembling.selection import (
    Combination,
    Loss,
    greedy_selection,
    log_loss_of_mean,
    squared_error_of_mean,
)
from hpcbal.errors import InputError
from hpcbal.runtime.evaluating.predicting import Predictions, Predictor, StoppedError
from hpcbal.runtime.evaluating.workers import Workers
from hpcbal.training.backend import Sums
from hpcbal.training.groups import USER_ERRORS, detail_of
from hpcbal.user_code import is_ctrl_c

CHUNK_BYTES = 64 * 2**20
"""Most bytes of a chunk's predictions on a rank."""

SELECTION_BYTES = 2**30
"""Most bytes of the predictions for the greedy selection; with more, nothing is selected."""

NUM_ENSEMBLES = 2
"""The mean of all DNNs, and the selected ones."""


Keep = Callable[[Mapping[str, NDArray[Any]]], None]
"""Keeps what an ensemble predicts for the next samples, by the names of columns, shape (n, ...)."""


class FailedDnnsError(Exception):
    """DNNs cannot be evaluated, for these reasons by name; the same on all ranks."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = reasons
        super().__init__(reasons)


@dataclass
class Scores:
    """Scores of the evaluated samples from all ranks; those of ensembles are on the first rank only.

    Attributes:
        num_samples: samples of the set that could be used.
        sums: of each DNN, from the evaluation of its replica.
        tallies: of each DNN.
        together: of the mean of all, and of the selected DNNs; None without items.
        measured: of both, what the loss and the metrics of the last DNN find in their predictions; on the
            last rank, which has this DNN, unless `trouble` is why it could not be found.
        metrics: of both, by name; None if they are not known.
        agreeing: sum of `agreeing_pairs`.
        num_items: number of items.
        calibrated: tallies of each DNN's calibrated predictions; None where they are not known.
        calibrated_together: of the mean of all, and of the selected DNNs.
        members: what each DNN contributes to the mean of all; None for fewer than two.
        within, between: of both, sums of the uncertainty within and between their members: the mean entropy
            of the members, and what the entropy of their mean is above that ([DEPEWEG] Sec. 3); of values,
            the variance between members alone.
    """

    num_samples: int = 0
    sums: list[Sums] = field(default_factory=list)
    tallies: list[Tally | None] = field(default_factory=list)
    together: list[Tally | None] = field(default_factory=lambda: [None] * NUM_ENSEMBLES)
    measured: list[Sums] = field(default_factory=lambda: [Sums() for _ in range(NUM_ENSEMBLES)])
    trouble: str = ""
    metrics: list[Mapping[str, float] | None] = field(default_factory=lambda: [None] * NUM_ENSEMBLES)
    agreeing: int = 0
    num_items: int = 0
    calibrated: list[Any] = field(default_factory=list)
    calibrated_together: list[Any] = field(default_factory=lambda: [None] * NUM_ENSEMBLES)
    members: MemberTally | None = None
    within: list[float] = field(default_factory=lambda: [0.0] * NUM_ENSEMBLES)
    between: list[float] = field(default_factory=lambda: [0.0] * NUM_ENSEMBLES)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Temperatures, or half widths of intervals, that were fitted on the validation samples.

    Attributes:
        members: of each DNN; None: not known.
        together: of the mean of all, and of the selected DNNs.
        sums: of each DNN, what the evaluation of its replica finds on these samples; empty: not known.
    """

    members: tuple[float | None, ...]
    together: tuple[float | None, ...] = (None,) * NUM_ENSEMBLES
    sums: tuple[Sums, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for the DNNs that could be evaluated.

    Attributes:
        scores: see `Scores`.
        selection: None if there is no validation set, or it is too large.
        disagreement: see `hpcbal.ensembling.disagreement`; None where no classes are predicted.
        fitted: by which predictions were calibrated.
    """

    scores: Scores
    selection: Combination | None
    disagreement: float | None
    fitted: Fitted


class Evaluator:
    """One rank's part of an evaluation; collective over the workers.

    Args:
        workers: the ranks that compute.
        predictor: this rank's networks.
        dnns: the DNNs to evaluate, at least one.
        kind: what they predict.
        num_columns: numbers that an item's prediction has: classes, or 1 for values.
        chunk_bytes: see `CHUNK_BYTES`.
        output: name of the output that is evaluated, if labels have names.
        keep: on the first rank, gets the predictions for all samples in their order; None: nobody does.
        kept: whose predictions: of the mean of all (0), or of the selected DNNs (1).
    """

    def __init__(
        self,
        workers: Workers,
        predictor: Predictor,
        dnns: Sequence[DnnConfig],
        kind: Kind,
        num_columns: int,
        chunk_bytes: int = CHUNK_BYTES,
        output: str = UNNAMED,
        keep: Keep | None = None,
        kept: int = 0,
    ) -> None:
        self._output = output
        self._keep, self._kept = keep, kept
        self._workers = workers
        self._predictor = predictor
        self._dnns = list(dnns)
        self._kind = kind
        self._num_columns = num_columns
        self._chunk_bytes = chunk_bytes

    def run(
        self, samples: SampleSet, validation: SampleSet | None, selection: Combination | None = None
    ) -> Outcome:
        """Evaluate all DNNs.

        Args:
            samples: what to evaluate on.
            validation: where to select DNNs; None: nowhere.
            selection: the DNNs that were selected already; None: none.

        Raises:
            FailedDnnsError: if DNNs cannot be evaluated; call again without them.
            InputError: if the predictions of a selection are to be kept, and there is none.
            StoppedError: if a rank was asked to stop.
        """
        if selection is None and validation is not None and len(self._dnns) > 1:
            selection = self.select(validation)
        weights = None if selection is None else selection.weights
        if self._keep is not None and self._kept and weights is None:
            raise InputError(
                "--ensemble greedy: nothing was selected, because there are no validation samples, or too "
                "many; take the mean of all"
            )
        fitted = Fitted((None,) * len(self._dnns))
        if validation is not None and not self._output:
            fitted = self.calibrate(validation, weights)
        scores = self._score(samples, weights, fitted)
        differing = None
        if self._kind != "values":
            differing = disagreement(scores.agreeing, len(self._dnns), scores.num_items)
        return Outcome(scores, selection, differing, fitted)

    def select(self, validation: SampleSet) -> Combination | None:
        """Return the DNNs that predict the validation samples best together; the same on all ranks.

        None if there are no samples, or too many for `SELECTION_BYTES`. Errors as for `run`.
        """
        num_items = len(validation.ids) * self._items_per_sample(validation)
        if len(self._dnns) * num_items * np.float64().itemsize > SELECTION_BYTES:
            return None
        evidence = np.zeros((len(self._dnns), num_items))
        labels, counts = np.full(num_items, -np.inf), np.zeros(num_items, np.int32)

        def take(member: int, found: Predictions, items: NDArray[np.int64]) -> None:
            evidence[member, items] = _evidence(found, self._kind)
            labels[items] = found.labels
            counts[items] += 1

        self._predict(validation, 0, len(validation.ids), take)
        is_known = self._workers.reduce(counts, "sum") == len(self._dnns)
        if not is_known.any():
            return None
        evidence = self._workers.reduce(evidence, "sum")[:, is_known]
        loss: Loss = log_loss_of_mean
        if self._kind == "values":
            loss = squared_error_of_mean(self._workers.reduce(labels, "max")[is_known])
        num_tried = 0

        def noted_loss(combined: NDArray[np.float64]) -> NDArray[np.float64]:
            nonlocal num_tried
            num_tried += len(combined)
            self._predictor.note(f"selecting DNNs: {num_tried} ensembles tried")
            return loss(combined)

        selection = greedy_selection(evidence, noted_loss) if self._workers.rank == 0 else None
        chosen: Combination = self._workers.share(selection)[0]
        return chosen

    def calibrate(self, validation: SampleSet, weights: Sequence[float] | None) -> Fitted:
        """Fit temperatures, or intervals, of the DNNs and their ensembles; the same on all ranks.

        Args:
            validation: where to fit them.
            weights: of the DNNs in the selection; None: there is none.

        Errors as for `run`.
        """
        num_dnns = len(self._dnns)
        num_items = len(validation.ids) * self._items_per_sample(validation)
        if self._kind == "values" and (num_dnns + NUM_ENSEMBLES) * num_items * 8 > SELECTION_BYTES:
            return Fitted((None,) * num_dnns)
        members: list[Any] = [None] * num_dnns
        together: list[Any] = [None] * NUM_ENSEMBLES
        sums = [Sums() for _ in self._dnns]

        def take(member: int, found: Predictions, items: NDArray[np.int64]) -> None:
            sums[member] += found.sums
            own = calibration_evidence(found.rows, found.labels, self._kind)
            members[member] = _sum([members[member], own])

        for start, stop in self._chunks(validation):
            rows, labels, _ = self._combined(validation, start, stop, weights, take)
            for index, each in enumerate(rows):
                together[index] = _sum([together[index], calibration_evidence(each, labels, self._kind)])
        parts = self._workers.share((members, sums))
        every = [_sum(part[i] for part, _ in parts) for i in range(num_dnns)]
        summed = tuple(sum((part[i] for _, part in parts), Sums()) for i in range(num_dnns))
        of_members, of_both = (
            tuple(None if each is None else each.fitted() for each in some) for some in (every, together)
        )
        return Fitted(of_members, of_both, summed)

    def _chunks(self, samples: SampleSet) -> Iterator[tuple[int, int]]:
        """Yield the first sample and the end of each chunk."""
        per_item = 8 * NUM_ENSEMBLES * (self._num_columns + 1) + (4 + 8) * len(self._dnns) + 8 + 4
        step = max(1, self._chunk_bytes // (per_item * self._items_per_sample(samples)))
        for start in range(0, len(samples.ids), step):
            yield start, min(start + step, len(samples.ids))

    def _combined(
        self,
        samples: SampleSet,
        start: int,
        stop: int,
        weights: Sequence[float] | None,
        take: Callable[[int, Predictions, NDArray[np.int64]], None],
    ) -> tuple[list[NDArray[np.float64]], NDArray[np.float64], NDArray[np.bool_]]:
        """Predict the samples start..stop-1 with all DNNs, and combine their predictions.

        Args:
            weights: see `calibrate`.
            take: see `_predict`.

        Returns: the rows of the mean of all, and with weights those of the selected DNNs; labels; and which
            items all DNNs have predicted. Rows and labels are those of these items alone.
        """
        num_dnns, num_items = len(self._dnns), (stop - start) * self._items_per_sample(samples)
        totals = np.zeros((NUM_ENSEMBLES, num_items, self._num_columns))
        labels, counts = np.full(num_items, -np.inf), np.zeros(num_items, np.int32)

        def add(member: int, found: Predictions, items: NDArray[np.int64]) -> None:
            totals[0, items] += found.rows / num_dnns
            if weights is not None:
                totals[1, items] += weights[member] * found.rows
            labels[items] = found.labels
            counts[items] += 1
            take(member, found, items)

        self._predict(samples, start, stop, add)
        is_known = self._workers.reduce(counts, "sum") == num_dnns
        known = self._workers.reduce(labels, "max")[is_known]
        number = NUM_ENSEMBLES if weights is not None else 1
        rows = [self._workers.reduce(totals[index], "sum")[is_known] for index in range(number)]
        return rows, known, is_known

    def _score(self, samples: SampleSet, weights: Sequence[float] | None, fitted: Fitted) -> Scores:
        num_dnns = len(self._dnns)
        scores = Scores(
            sums=[Sums() for _ in self._dnns], tallies=[None] * num_dnns, calibrated=[None] * num_dnns
        )
        for start, stop in self._chunks(samples):
            self._score_chunk(samples, start, stop, weights, fitted, scores)
        mine, soft = self._metrics_of_ensembles(scores), self._predictor.found.has_soft_labels
        parts = self._workers.share(
            (scores.sums, scores.tallies, mine, scores.trouble, soft, scores.calibrated)
        )
        if not any(part[4] for part in parts):  # of soft labels, too little is left to measure with
            scores.metrics, scores.trouble = parts[-1][2:4]
        scores.sums = [sum((part[0][i] for part in parts), Sums()) for i in range(num_dnns)]
        scores.tallies = [_sum(part[1][i] for part in parts) for i in range(num_dnns)]
        scores.calibrated = [_sum(part[5][i] for part in parts) for i in range(num_dnns)]
        return scores

    def _score_chunk(
        self,
        samples: SampleSet,
        start: int,
        stop: int,
        weights: Sequence[float] | None,
        fitted: Fitted,
        scores: Scores,
    ) -> None:
        num_dnns, num_items = len(self._dnns), (stop - start) * self._items_per_sample(samples)
        predicted = np.zeros((num_dnns, num_items), np.int32)
        evidence = np.zeros((num_dnns, num_items))
        spread = np.zeros((NUM_ENSEMBLES, num_items))
        is_values = self._kind == "values"

        def calibrated(rows: NDArray[np.float64], labels: NDArray[np.float64], by: float | None) -> Any:
            return None if by is None else calibrated_tally(rows, labels, self._kind, by)

        def take(member: int, found: Predictions, items: NDArray[np.int64]) -> None:
            own = np.square(found.rows[:, 0]) if is_values else entropies(found.rows)
            spread[0, items] += own / num_dnns
            if weights is not None:
                spread[1, items] += weights[member] * own
            predicted[member, items] = found.rows.argmax(axis=1)
            if not samples.has_labels:
                return
            evidence[member, items] = _evidence(found, self._kind)
            scores.sums[member] += found.sums
            tally = tally_of(found.rows, found.labels, self._kind)
            scores.tallies[member] = _sum([scores.tallies[member], tally])
            scaled = calibrated(found.rows, found.labels, fitted.members[member])
            scores.calibrated[member] = _sum([scores.calibrated[member], scaled])

        rows, labels, is_known = self._combined(samples, start, stop, weights, take)
        scores.num_samples += len(labels) // self._items_per_sample(samples)
        scores.num_items += len(labels)
        classes = self._workers.reduce(predicted, "sum")[:, is_known]
        scores.agreeing += agreeing_pairs(classes)
        evidence = self._workers.reduce(evidence, "sum")[:, is_known]
        if num_dnns > 1 and len(labels) and samples.has_labels:
            members = MemberTally.of(evidence, classes, labels, self._kind)
            scores.members = members if scores.members is None else scores.members + members
        spread = self._workers.reduce(spread, "sum")[:, is_known]
        if self._keep is not None and self._workers.rank == 0:
            of_one = rows[self._kept], spread[self._kept], self._kind, fitted.together[self._kept]
            columns = prediction_columns(*of_one)
            if samples.has_labels:
                columns["label"] = labels if is_values else labels.astype(np.int32)
            label = samples.source.label_spec.by_name[self._output]
            shape = items_shape(label.shape, label.dtype, self._kind)
            self._keep(columns_of_samples(columns, is_known, shape))
        for index, each in enumerate(rows):
            own = float(spread[index].sum())
            if is_values:
                scores.between[index] += own - float(np.square(each).sum())
            else:
                scores.within[index] += own
                scores.between[index] += float(entropies(each).sum()) - own
            if not samples.has_labels:
                continue
            scores.together[index] = _sum([scores.together[index], tally_of(each, labels, self._kind)])
            scaled = calibrated(each, labels, fitted.together[index])
            scores.calibrated_together[index] = _sum([scores.calibrated_together[index], scaled])
            if num_dnns > 1 and len(labels) and not self._output:  # a replica measures all outputs together
                self._measure(samples, index, each, labels, scores)

    def _measure(
        self,
        samples: SampleSet,
        index: int,
        rows: NDArray[np.float64],
        labels: NDArray[np.float64],
        scores: Scores,
    ) -> None:
        """Measure an ensemble like the last DNN, on the last rank: its part ends with that DNN."""
        if self._workers.rank < self._workers.size - 1 or scores.trouble:
            return
        try:
            found = self._predictor.measure(self._dnns[-1], samples, rows, labels, self._kind)
            scores.measured[index] += found
        except USER_ERRORS as error:  # a user's metric; all else is known
            scores.trouble = detail_of(error).splitlines()[0]

    def _metrics_of_ensembles(self, scores: Scores) -> list[Mapping[str, float] | None]:
        found: list[Mapping[str, float] | None] = [None] * NUM_ENSEMBLES
        for index, sums in enumerate(scores.measured):
            if not scores.trouble and sums.count and sums.count == scores.num_samples:
                try:
                    found[index] = self._predictor.found.describe[self._dnns[-1].name](sums)
                except USER_ERRORS as error:
                    scores.trouble = detail_of(error).splitlines()[0]
        return found

    def _predict(
        self,
        samples: SampleSet,
        start: int,
        stop: int,
        take: Callable[[int, Predictions, NDArray[np.int64]], None],
    ) -> None:
        """Predict this rank's part of the samples start..stop-1 with all DNNs.

        Args:
            take: called with a DNN's index, some of its predictions, and the indices of their items among
                those of the samples start..stop-1.
        """
        per_sample = self._items_per_sample(samples)
        failed: dict[str, str] = {}
        is_stopped = False
        for piece in pieces_of_rank(len(self._dnns), stop - start, self._workers.rank, self._workers.size):
            dnn = self._dnns[piece.member]
            try:
                for found in self._predictor.predictions(
                    dnn, samples, start + piece.start, start + piece.stop, self._kind, self._output
                ):
                    items = (found.positions - start)[:, None] * per_sample + np.arange(per_sample)
                    take(piece.member, found, items.reshape(-1))
            except StoppedError:
                is_stopped = True
                break
            except USER_ERRORS as error:  # a user's model may raise anything; the others go on
                if is_ctrl_c(error):  # in a script; ranks catch it
                    raise
                failed[dnn.name] = detail_of(error).splitlines()[0]
        everyone = self._workers.share((failed, is_stopped))
        if any(stopped for _, stopped in everyone):
            raise StoppedError
        reasons = {name: reason for some, _ in everyone for name, reason in some.items()}
        if reasons:
            raise FailedDnnsError(reasons)

    def _items_per_sample(self, samples: SampleSet) -> int:
        label = samples.source.label_spec.by_name[self._output]
        return items_per_sample(label.shape, label.dtype, self._kind)


def _evidence(found: Predictions, kind: Kind) -> NDArray[np.float64]:
    """Return the values, or the probabilities of the right classes: the loss of a mean needs no more."""
    if kind == "values":
        return found.rows[:, 0]
    return answers_of(found.rows, found.labels.astype(np.int64)).truth


def _sum(tallies: Iterable[Any]) -> Any:
    """The sum of tallies; None stands for a tally of nothing."""
    total = None
    for tally in tallies:
        total = tally if total is None else total if tally is None else total + tally
    return total
