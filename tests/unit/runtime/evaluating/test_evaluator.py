"""Any number of ranks finds the same scores as one formula over all predictions, in any chunks."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from loopback import LoopbackGroupComm, Meeting

from hpcbal.checkpoint.best import BEST_BY, write_best
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.config.schema.objective import MetricConfig
from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec
from hpcbal.data.column_file import ColumnFile
from hpcbal.data.evaluation import SampleSet
from hpcbal.ensembling.calibration import TemperatureTally, entropies, half_width, tempered
from hpcbal.ensembling.members import MemberTally, tally_of
from hpcbal.ensembling.selection import greedy_selection, log_loss_of_mean
from hpcbal.errors import DataError, InputError
from hpcbal.events.history import EpochRecord, Position
from hpcbal.runtime.evaluating import evaluator as evaluator_module
from hpcbal.runtime.evaluating.evaluator import Evaluator, FailedDnnsError
from hpcbal.runtime.evaluating.predicting import Predictor, StoppedError
from hpcbal.runtime.evaluating.request import TrainedRun
from hpcbal.runtime.evaluating.result import (
    EvaluationData,
    Kept,
    evaluate_run,
    metrics_beside,
    names_in_common,
    report,
)
from hpcbal.telemetry.views.evaluation import Evaluation, read_evaluation, render_evaluation
from hpcbal.training.backend import Sums

NUM_CLASSES, NUM_FEATURES = 3, 5


class Points:
    """Noise whose class a linear network can guess; broken samples cannot be read."""

    num_classes = NUM_CLASSES
    sample_spec = SampleSpec.of((NUM_FEATURES,), "float32")
    label_spec = LabelSpec()

    def __init__(self, num_samples: int = 60, broken: Sequence[int] = ()) -> None:
        rng = np.random.default_rng(4)
        self.x = rng.normal(size=(num_samples, NUM_FEATURES)).astype(np.float32)
        self.y = (self.x @ rng.normal(size=(NUM_FEATURES, NUM_CLASSES))).argmax(axis=1)
        self.broken = set(broken)

    def __len__(self) -> int:
        return len(self.x)

    def read(self, sample_id: int) -> tuple[Any, Any]:
        if sample_id in self.broken:
            raise OSError("unreadable")
        return self.x[sample_id], int(self.y[sample_id])

    def describe(self, sample_id: int) -> str:
        return f"point {sample_id}"


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


class Linear:
    """A network with one matrix; what evaluation needs of a replica."""

    num_bytes = 120

    def __init__(self, fails: str) -> None:
        self.weights = np.zeros((NUM_FEATURES, NUM_CLASSES))
        self.fails = fails

    def state(self) -> dict[str, Any]:
        return {"weights/matrix": self.weights, "optimizer/momentum": self.weights}

    def load_state(self, arrays: Any) -> None:
        assert set(arrays) == {"weights/matrix", "optimizer/momentum"}
        self.weights = arrays["weights/matrix"]

    def predict(self, batch: Any) -> np.ndarray:
        if self.fails == "predict":
            raise RuntimeError("no such layer\nand more")
        return softmax(batch.x @ self.weights)

    def evaluate(self, batch: Any) -> Sums:
        rows = softmax(batch.x @ self.weights)
        losses = -np.log(rows[np.arange(len(batch.y)), batch.y])
        right = float((rows.argmax(axis=1) == batch.y).sum())
        return Sums(float(losses.sum()), len(batch.y), np.array([right]))

    def measure(self, y: np.ndarray, predictions: np.ndarray) -> Sums:
        if self.fails == "metric":
            raise RuntimeError("no such metric")
        losses = -np.log(predictions[np.arange(len(y)), y])
        return Sums(float(losses.sum()), len(y), np.array([float((predictions.argmax(axis=1) == y).sum())]))

    def metrics(self, sums: Sums) -> dict[str, float]:
        accuracy = float(sums.states[0]) / sums.count if sums.count else float("nan")
        return {"loss": sums.mean_loss, "accuracy": accuracy}

    def close(self) -> None:
        pass


class Backend:
    def __init__(self, failing: Sequence[str] = (), how: str = "predict") -> None:
        self.failing, self.how = failing, how
        self.built: list[str] = []

    def build(self, dnn: Any, *_: Any) -> Linear:
        self.built.append(dnn.name)
        return Linear(self.how if dnn.name in self.failing else "")


class ThreadWorkers:
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size = rank, meeting.num_ranks
        self._meeting = meeting
        self._group = LoopbackGroupComm(rank, meeting)

    def share(self, value: Any) -> list[Any]:
        return self._meeting.exchange(self.rank, value)

    def reduce(self, array: np.ndarray, reduction: Any) -> np.ndarray:
        return self._group.all_reduce(array, reduction)


class Settings(SimpleNamespace):
    """The part of a DNN's configuration that evaluation reads."""

    outputs = ()
    loss_weights = None
    fold = None

    @property
    def has_own_loss(self) -> bool:
        return getattr(self.loss, "name", None) == "module"

    def for_prediction(self) -> Any:
        return self


class Lab:
    """Trained networks on disk, and the data to evaluate them on."""

    def __init__(self, folder: Path, num_dnns: int = 4, broken: Sequence[int] = ()) -> None:
        self.folder = folder
        points: Any = Points(broken=broken)
        self.source = PreprocessedSamples(points, (), seed=1, validation_fraction=0.3, test_fraction=0.3)
        self.test = SampleSet("the test set", self.source, self.source.test_ids)
        self.validation = SampleSet("the validation set", self.source, self.source.validation_ids)
        self.data = EvaluationData(self.source, self.test, self.validation)
        self.dnns: list[Any] = [
            Settings(name=f"d{i}", batch_size=4 + i, loss=None, metrics=None, label_smoothing=0.0)
            for i in range(num_dnns)
        ]
        rng = np.random.default_rng(9)
        solution = np.linalg.lstsq(points.x, np.eye(NUM_CLASSES)[points.y], rcond=None)[0]
        self.matrices = [4.0 * solution + rng.normal(size=solution.shape) for _ in self.dnns]
        for dnn, matrix in zip(self.dnns, self.matrices, strict=True):
            arrays = {"weights/matrix": matrix, "optimizer/momentum": matrix}
            state = TrainingState(
                dnn.name, 3, Position(3, 0), arrays=arrays, fingerprint=self.source.fingerprint
            )
            write_checkpoint(folder / dnn.name, state)

    @property
    def run(self) -> TrainedRun:
        config: Any = SimpleNamespace(name="lab")
        return TrainedRun(config, self.folder, tuple(self.dnns), {"gone": "it failed in training"}, "test")

    def predictor(self, backend: Any = None, **given: Any) -> Predictor:
        return Predictor(backend or Backend(), self.source, lambda n: self.folder / n, None, 0, **given)

    def probabilities(self, ids: np.ndarray) -> np.ndarray:
        """The oracle: of all DNNs at once."""
        x = self.source.dataset.x[ids]  # type: ignore[attr-defined]
        return np.stack([softmax(x @ m) for m in self.matrices])

    def labels(self, ids: np.ndarray) -> np.ndarray:
        return np.asarray(self.source.dataset.y[ids], float)  # type: ignore[attr-defined]


def on_ranks(num_ranks: int, work: Callable[[ThreadWorkers], Any]) -> list[Any]:
    """Let all ranks work; the first error ends the meeting of the others."""
    meeting = Meeting(num_ranks)

    def play(rank: int) -> Any:
        try:
            return work(ThreadWorkers(rank, meeting))
        except BaseException:
            if num_ranks > 1:
                threading.Timer(0.5, meeting.abort).start()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(play, rank) for rank in range(num_ranks)]
        errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


def evaluate(lab: Lab, num_ranks: int = 1, backend: Any = None, data: Any = None) -> Evaluation:
    results = on_ranks(
        num_ranks,
        lambda workers: evaluate_run(workers, lab.predictor(backend), lab.run, data or lab.data),  # type: ignore[arg-type]
    )
    first: Evaluation = results[0]
    return first


def other_notes(evaluation: Evaluation) -> list[str]:
    """Return the notes but the one on temperatures at a bound: few points of random weights may give it."""
    return [note for note in evaluation.notes if "is at its bound" not in note]


@pytest.mark.parametrize(("num_ranks", "chunk_bytes"), [(1, 2**20), (1, 500), (3, 2**20), (7, 700)])
def test_scores_are_those_of_all_predictions_at_once(
    tmp_path: Path, num_ranks: int, chunk_bytes: int
) -> None:
    lab = Lab(tmp_path)
    results = on_ranks(
        num_ranks,
        lambda workers: Evaluator(
            workers,
            lab.predictor(),
            lab.dnns,
            "classes",
            NUM_CLASSES,
            chunk_bytes,  # type: ignore[arg-type]
        ).run(lab.test, lab.validation),
    )
    rows, labels = lab.probabilities(lab.test.ids), lab.labels(lab.test.ids)
    truth = lab.probabilities(lab.validation.ids)[:, range(18), lab.labels(lab.validation.ids).astype(int)]
    selection = greedy_selection(truth, log_loss_of_mean)
    for outcome in results:
        assert outcome.selection.counts == selection.counts
        assert outcome.selection.loss == pytest.approx(selection.loss)
        scores = outcome.scores
        assert (scores.num_samples, scores.num_items) == (18, 18)
        expected = [rows.mean(axis=0), np.average(rows, axis=0, weights=selection.weights)]
        for tally, combined in zip(scores.together, expected, strict=True):
            assert tally.scores() == pytest.approx(tally_of(combined, labels, "classes").scores())
        for metrics, combined in zip(scores.metrics, expected, strict=True):
            of_mean = tally_of(combined, labels, "classes").scores()
            assert metrics == pytest.approx({"loss": of_mean["nll"], "accuracy": of_mean["accuracy"]})
        for member, tally in enumerate(scores.tallies):
            assert tally.scores() == pytest.approx(tally_of(rows[member], labels, "classes").scores())
            assert scores.sums[member].count == 18
            assert scores.sums[member].mean_loss == pytest.approx(tally.scores()["nll"], rel=1e-5)
        check_calibration(lab, outcome, rows, labels, selection.weights)
        predicted = rows.argmax(axis=2)
        pairs = [(a != b).mean() for i, a in enumerate(predicted) for b in predicted[:i]]
        assert outcome.disagreement == pytest.approx(np.mean(pairs))
        classes = labels.astype(int)
        members = MemberTally.of(rows[:, range(18), classes], predicted.astype(np.int32), labels, "classes")
        assert scores.members.contributions() == pytest.approx(members.contributions())
        assert scores.members.distances() == pytest.approx(np.array(members.distances()))


def check_calibration(
    lab: Lab, outcome: Any, rows: np.ndarray, labels: np.ndarray, weights: Sequence[float]
) -> None:
    """Temperatures and parts of the uncertainty are those of all predictions at once."""
    held, right = lab.probabilities(lab.validation.ids), lab.labels(lab.validation.ids).astype(int)
    shares = [np.full(len(rows), 1.0 / len(rows)), np.asarray(weights)]
    combined = [np.tensordot(share, held, 1) for share in shares]
    wanted = [TemperatureTally.of(each, right).temperature() for each in (*held, *combined)]
    assert (*outcome.fitted.members, *outcome.fitted.together) == pytest.approx(wanted)
    scores = outcome.scores
    tested = [*rows, *(np.tensordot(share, rows, 1) for share in shares)]
    tallies = [*scores.calibrated, *scores.calibrated_together]
    for each, temperature, tally in zip(tested, wanted, tallies, strict=True):
        expected = tally_of(tempered(each, temperature), labels, "classes")
        assert tally.scores() == pytest.approx(expected.scores())
    for index, share in enumerate(shares):
        within = sum(weight * entropies(each).sum() for weight, each in zip(share, rows, strict=True))
        assert scores.within[index] == pytest.approx(within)
        assert within + scores.between[index] == pytest.approx(entropies(tested[4 + index]).sum())
        assert scores.between[index] >= 0.0


class Slopes(Backend):
    """Networks whose first output is a value."""

    def build(self, dnn: Any, *_: Any) -> Linear:
        replica = super().build(dnn)
        classes = replica.predict
        replica.predict = lambda batch: classes(batch)[:, :1]  # type: ignore[method-assign]
        return replica


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_intervals_around_values_are_those_of_all_residuals_at_once(tmp_path: Path, num_ranks: int) -> None:
    lab = Lab(tmp_path)
    results = on_ranks(
        num_ranks,
        lambda workers: Evaluator(workers, lab.predictor(Slopes()), lab.dnns, "values", 1, 700).run(  # type: ignore[arg-type]
            lab.test, lab.validation
        ),
    )
    held = lab.probabilities(lab.validation.ids)[:, :, 0]
    values, labels = lab.probabilities(lab.test.ids)[:, :, 0], lab.labels(lab.test.ids)
    for outcome in results:
        shares = [np.full(4, 0.25), np.asarray(outcome.selection.weights)]
        residuals = lab.labels(lab.validation.ids) - np.concatenate([held, shares @ held])
        wanted = [half_width(each) for each in residuals]
        assert (*outcome.fitted.members, *outcome.fitted.together) == pytest.approx(wanted)
        scores = outcome.scores
        tested = np.concatenate([values, shares @ values])
        inside = np.abs(labels - tested) <= np.array(wanted)[:, None]
        tallies = [*scores.calibrated, *scores.calibrated_together]
        assert [tally.covered for tally in tallies] == inside.sum(axis=1).tolist()
        assert scores.members.contributions() == pytest.approx(
            [
                np.square(np.delete(values, member, axis=0).mean(axis=0) - labels).mean()
                - np.square(values.mean(axis=0) - labels).mean()
                for member in range(4)
            ]
        )
        for index, share in enumerate(shares):
            spread = share @ np.square(values) - np.square(share @ values)
            assert scores.between[index] == pytest.approx(spread.sum())


@pytest.mark.parametrize(("num_ranks", "chunk_bytes"), [(1, 2**20), (3, 700)])
@pytest.mark.parametrize("ensemble", ["mean", "greedy"])
@pytest.mark.parametrize("has_labels", [True, False])
def test_kept_predictions_are_those_of_all_samples_at_once(
    tmp_path: Path,
    num_ranks: int,
    chunk_bytes: int,
    ensemble: str,
    has_labels: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Evaluator.__init__, "__defaults__", (chunk_bytes, "", None, 0))
    lab = Lab(tmp_path, broken=range(0, 60, 7))
    lab.data = replace(lab.data, samples=replace(lab.test, has_labels=has_labels))
    path = tmp_path / "predicted.h5"

    def work(workers: Any) -> Any:
        with ColumnFile(path) if workers.rank == 0 else nullcontext() as file:
            kept = Kept(file, ensemble)
            evaluation = evaluate_run(workers, lab.predictor(), lab.run, lab.data, kept)
            if workers.rank == 0:
                kept.write(lab.data.samples)
            return evaluation

    evaluation = on_ranks(num_ranks, work)[0]
    good = lab.test.ids % 7 != 0
    rows = lab.probabilities(lab.test.ids)
    shares = [0.25] * 4 if ensemble == "mean" else [dnn.share for dnn in evaluation.dnns]
    mean = np.average(rows, axis=0, weights=shares)
    temperature = evaluation.ensembles[ensemble == "greedy"].calibrated["temperature"]
    within = sum(share * entropies(each) for share, each in zip(shares, rows, strict=True))
    with h5py.File(path) as file:
        found = {name: values[()] for name, values in file.items()}
        facts = {name: json.loads(value) for name, value in file.attrs.items()}
    assert [each.decode() for each in found["sample"]] == [f"point {i}" for i in lab.test.ids]
    assert [each.decode() != "" for each in found["problem"]] == (~good).tolist()
    assert found["probabilities"][good] == pytest.approx(tempered(mean, temperature)[good], abs=1e-6)
    assert found["within"][good] == pytest.approx(within[good], abs=1e-6)
    assert (found["within"] + found["between"])[good] == pytest.approx(entropies(mean)[good], abs=1e-6)
    assert found["predicted"].tolist() == np.where(good, mean.argmax(axis=1), -1).tolist()
    assert np.isnan(found["confidence"]).tolist() == (~good).tolist()
    assert facts["members"] == pytest.approx({f"d{i}": share for i, share in enumerate(shares) if share})
    assert facts["temperature"] == pytest.approx(temperature)
    if has_labels:
        labels = np.where(good, lab.labels(lab.test.ids), -1)
        assert found["label"].tolist() == labels.tolist()
    else:
        assert "label" not in found
        assert not any(dnn.scores for dnn in evaluation.dnns)
        assert "accuracy" not in render_evaluation(evaluation)
    assert sorted(path.parent.glob("*predicted*")) == [path]


class Overflowing(Backend):
    """Networks that predict NaN or infinity for some samples, by DNN; some raise at a sample, by DNN."""

    def __init__(self, numbers: dict[str, dict[int, float]], raising: dict[str, int] | None = None) -> None:
        super().__init__()
        self.numbers, self.raising = numbers, raising or {}

    def build(self, dnn: Any, *_: Any) -> Linear:
        replica, numbers = super().build(dnn), self.numbers.get(dnn.name, {})
        usual = replica.predict

        def predict(batch: Any) -> np.ndarray:
            if self.raising.get(dnn.name) in batch.ids:
                raise RuntimeError("no such layer")
            rows = usual(batch)
            for sample_id, number in numbers.items():
                rows[batch.ids == sample_id, 1] = number
            return rows

        replica.predict = predict  # type: ignore[method-assign]
        return replica


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_sample_for_which_a_prediction_is_not_finite_has_a_problem_and_counts_nowhere(
    tmp_path: Path, num_ranks: int
) -> None:
    lab = Lab(tmp_path)
    first, second, third, last = (int(each) for each in lab.test.ids[[1, 2, 9, -1]])
    numbers = {"d1": {first: np.nan}, "d3": {first: np.inf, second: -np.inf}, "d2": {third: np.nan}}
    lab.data = replace(lab.data, samples=replace(lab.test, has_labels=False))
    path = tmp_path / "predicted.h5"

    def work(workers: Any) -> Any:
        with ColumnFile(path) if workers.rank == 0 else nullcontext() as file:
            kept, backend = Kept(file, "mean"), Overflowing(numbers, {"d2": last})
            evaluation = evaluate_run(workers, lab.predictor(backend), lab.run, lab.data, kept)
            if workers.rank == 0:
                kept.write(lab.data.samples)
            return evaluation

    evaluation = on_ranks(num_ranks, work)[0]
    with h5py.File(path) as file:
        found = {name: values[()] for name, values in file.items()}
    problems = {place: text.decode() for place, text in enumerate(found["problem"]) if text}
    assert problems == {
        1: f"sample {first} (point {first}): d1 predicts NaN or infinity",
        2: f"sample {second} (point {second}): d3 predicts NaN or infinity",
    }  # not of d2, which was left out
    good = np.setdiff1d(np.arange(len(lab.test.ids)), [1, 2])
    assert found["predicted"][[1, 2]].tolist() == [-1, -1]
    assert np.isnan(found["probabilities"][[1, 2]]).all()
    rows = lab.probabilities(lab.test.ids[good])[[0, 1, 3]]
    assert found["predicted"][good].tolist() == rows.mean(axis=0).argmax(axis=1).tolist()
    within = entropies(rows.reshape(-1, NUM_CLASSES)).mean()
    assert evaluation.ensembles[0].uncertainty["within"] == pytest.approx(within)
    text = render_evaluation(evaluation)
    assert f"left out 2 samples: {problems[1]}; {problems[2]}" in text
    assert evaluation.num_samples == len(good)


def test_predictions_of_named_dnns_leave_the_evaluation_of_all(tmp_path: Path, capsys: Any) -> None:
    lab = Lab(tmp_path)
    path = tmp_path / "evaluation.json"
    of_all = evaluate(lab)
    report(lab.run, of_all, lab.test, None, as_json=False)
    assert read_evaluation(path) == of_all
    lab.dnns = lab.dnns[:2]
    kept: Any = SimpleNamespace(write=lambda samples: "p.csv")
    report(lab.run, evaluate(lab), lab.test, kept, as_json=False, is_of_some=True)
    assert read_evaluation(path) == of_all
    assert "evaluation.json" not in capsys.readouterr().out.partition("predictions: p.csv")[2]
    report(lab.run, of_two := evaluate(lab), lab.test, None, as_json=False, is_of_some=True)
    assert read_evaluation(path) == of_two


def test_a_dnn_that_predicts_nan_for_samples_with_labels_is_left_out_and_names_the_sample(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path)
    sample = int(lab.test.ids[4])
    evaluation = evaluate(lab, 2, Overflowing({"d1": {sample: np.nan}}))
    assert evaluation.left_out["d1"] == f"it predicts NaN or infinity for sample {sample} (point {sample})"
    assert evaluation.num_broken == 0


def test_predictions_of_a_selection_need_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.data = replace(lab.data, validation=None)
    with pytest.raises(InputError, match="--ensemble greedy: nothing was selected"):
        on_ranks(
            2,
            lambda workers: evaluate_run(workers, lab.predictor(), lab.run, lab.data, Kept(None, "greedy")),
        )


def test_ranks_build_only_the_networks_of_their_part(tmp_path: Path) -> None:
    lab, backends = Lab(tmp_path), [Backend(), Backend()]
    on_ranks(
        2,
        lambda workers: Evaluator(
            workers,
            lab.predictor(backends[workers.rank]),
            lab.dnns,
            "classes",
            NUM_CLASSES,  # type: ignore[arg-type]
        ).run(lab.test, None),
    )
    assert [backend.built for backend in backends] == [["d0", "d1"], ["d2", "d3"]]


def test_the_evaluation_names_every_dnn_and_compares_the_ensemble_with_the_best(tmp_path: Path) -> None:
    evaluation = evaluate(Lab(tmp_path), num_ranks=2)
    assert [dnn.name for dnn in evaluation.dnns] == ["d0", "d1", "d2", "d3"]
    assert {(dnn.weights, dnn.epoch) for dnn in evaluation.dnns} == {("last", 3)}
    assert evaluation.score_names == ("loss", "accuracy", "nll", "calibration_error")
    assert sum(dnn.share or 0.0 for dnn in evaluation.dnns) == pytest.approx(1.0)
    assert evaluation.left_out == {"gone": "it failed in training"}
    assert [each.name for each in evaluation.ensembles] == ["mean of all", "greedy selection"]
    text = render_evaluation(evaluation)
    assert text.startswith("lab on the test set: 18 samples\n")
    assert "the best DNN, d" in text
    assert "left out: gone: it failed in training" in text
    assert "calibrated on the validation set  temperature     nll  calibration error\n" in text
    assert re.search(
        r"uncertainty of the mean of all: 0\.\d+ nats within its DNNs, 0\.\d+ between them", text
    )
    for each in (*evaluation.dnns, *evaluation.ensembles):
        assert each.calibrated.keys() == {"temperature", "nll", "calibration_error"}


def test_ensembles_show_the_loss_and_the_metrics_that_all_dnns_have(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    mean, selected = evaluate(lab, num_ranks=3).ensembles
    for each in (mean, selected):
        assert each.scores["loss"] == pytest.approx(each.scores["nll"])
    lab.dnns[1].label_smoothing = 0.1
    assert "loss" not in evaluate(lab, num_ranks=2).ensembles[0].scores
    first, other = MetricConfig(name="auc"), MetricConfig(name="auc", args={"num_thresholds": 9})
    same: list[Any] = [Settings(metrics=(first,), loss=None, label_smoothing=0.0) for _ in "ab"]
    assert names_in_common(same) == {"auc", "loss"}
    same[1].metrics = (other,)
    assert names_in_common(same) == {"loss"}


def test_a_metric_that_raises_for_an_ensemble_costs_no_other_score(tmp_path: Path) -> None:
    evaluation = evaluate(Lab(tmp_path), 3, Backend(failing=["d3"], how="metric"))
    (note,) = other_notes(evaluation)
    assert note.startswith("the metrics of the ensembles are not known: ")
    assert note.endswith("RuntimeError: no such metric")
    assert set(evaluation.ensembles[0].scores) == {"accuracy", "nll", "calibration_error"}
    assert len(evaluation.dnns) == 4


def test_broken_samples_are_named_and_count_nowhere(tmp_path: Path) -> None:
    whole = Lab(tmp_path / "whole")
    missing = [int(i) for i in (whole.test.ids[2], whole.test.ids[11], whole.validation.ids[0])]
    lab = Lab(tmp_path / "broken", broken=missing)
    evaluation = evaluate(lab, num_ranks=3)
    assert (evaluation.num_samples, evaluation.num_broken) == (16, 2)
    assert all(f"point {missing[i]}" in text for i, text in enumerate(evaluation.broken))
    assert all("unreadable" in text for text in evaluation.broken)
    kept = np.setdiff1d(lab.test.ids, missing)
    rows = lab.probabilities(kept).mean(axis=0)
    expected = tally_of(rows, lab.labels(kept), "classes").scores()
    expected["loss"] = expected["nll"]
    assert evaluation.ensembles[0].scores == pytest.approx(expected)


def test_a_dnn_that_cannot_predict_is_left_out_and_the_others_are_evaluated(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    evaluation = evaluate(lab, 2, Backend(failing=["d1"]))
    assert [dnn.name for dnn in evaluation.dnns] == ["d0", "d2", "d3"]
    assert "no such layer" in evaluation.left_out["d1"]
    lab.dnns.pop(1)
    lab.matrices.pop(1)
    assert evaluation.ensembles[0].scores == pytest.approx(evaluate(lab).ensembles[0].scores)


def test_without_any_dnn_that_works_the_evaluation_is_refused(tmp_path: Path) -> None:
    lab = Lab(tmp_path, num_dnns=2)
    with pytest.raises(InputError, match=r"no DNN can be evaluated: .*d0: .*no such layer"):
        evaluate(lab, 1, Backend(failing=["d0", "d1"]))


def test_a_model_that_changed_is_left_out_with_the_reason(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    (tmp_path / "d2" / "checkpoint.h5").write_bytes(b"damaged")
    evaluation = evaluate(lab)
    assert "no whole checkpoint" in evaluation.left_out["d2"]


def test_a_set_without_any_usable_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no sample of the test set can be used: sample \d+ .*unreadable"):
        evaluate(Lab(tmp_path, broken=range(60)))


def test_a_signal_stops_all_ranks(tmp_path: Path) -> None:
    lab = Lab(tmp_path)

    def stop_at_once() -> None:
        raise StoppedError

    def work(workers: Any) -> Any:
        given = {"check_stop": stop_at_once} if workers.rank == 1 else {}
        return evaluate_run(workers, lab.predictor(**given), lab.run, lab.data)

    with pytest.raises(StoppedError):
        on_ranks(3, work)


def test_too_many_predictions_for_a_selection_select_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator_module, "SELECTION_BYTES", 100)
    evaluation = evaluate(Lab(tmp_path))
    assert [each.name for each in evaluation.ensembles] == ["mean of all"]
    assert other_notes(evaluation) == [
        "nothing was selected: the predictions of the validation samples take more than 1 GiB"
    ]


def test_weights_of_other_data_are_pointed_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    other = Points(num_samples=40)
    source = PreprocessedSamples(other, (), seed=1, validation_fraction=0.3)  # type: ignore[arg-type]
    samples = SampleSet("other points", source, source.validation_ids)
    lab.source = source
    evaluation = evaluate(lab, 1, data=EvaluationData(source, samples, None))
    assert any("d0 was trained on other data" in note for note in evaluation.notes)
    assert "nothing was selected: the run has no validation samples" in evaluation.notes


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_code_that_changed_since_the_weights_were_saved_is_pointed_out(
    tmp_path: Path, num_ranks: int
) -> None:
    """Another activation, say: the weights still fit, and all scores are those of another network."""

    class Hotter(Linear):
        def predict(self, batch: Any) -> np.ndarray:
            return softmax(2.0 * batch.x @ self.weights)

        def evaluate(self, batch: Any) -> Sums:
            return self.measure(batch.y, self.predict(batch))

    class Changed(Backend):
        def build(self, dnn: Any, *_: Any) -> Linear:
            return Hotter("") if dnn.name == "d2" else Linear("")

    lab = Lab(tmp_path)
    ids = lab.source.validation_ids
    labels = lab.labels(ids).astype(int)
    losses = [-np.log(rows[np.arange(len(ids)), labels]).mean() for rows in lab.probabilities(ids)]
    for index, (dnn, loss) in enumerate(zip(lab.dnns, losses, strict=True)):
        arrays = {"weights/matrix": lab.matrices[index], "optimizer/momentum": lab.matrices[index]}
        history = tuple(EpochRecord(i, i - 1, {"val_loss": 1.001 * float(loss)}) for i in (1, 2, 3))
        state = TrainingState(
            dnn.name, 3, Position(3, 0), history, arrays, lab.source.fingerprint, {BEST_BY: "val_loss"}
        )
        write_checkpoint(tmp_path / dnn.name, state)
        write_best(tmp_path / dnn.name, state, is_ahead=True)
    assert not [note for note in evaluate(lab, num_ranks).notes if "has a loss of" in note]
    (note,) = [note for note in evaluate(lab, num_ranks, Changed()).notes if "has a loss of" in note]
    assert re.fullmatch(
        rf"d2 has a loss of [\d.]+ on the validation samples, but had {1.001 * losses[2]:.4g} when its "
        "weights were saved, so the code of its model or its data has changed: restore it, or train anew",
        note,
    )


def test_weights_that_a_running_run_replaces_meanwhile_are_pointed_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path, num_dnns=1)
    later, matrix = tmp_path / "later", lab.matrices[0]
    arrays = {"weights/matrix": matrix, "optimizer/momentum": matrix}
    state = TrainingState("d0", 4, Position(4, 0), arrays=arrays, fingerprint=lab.source.fingerprint)
    write_checkpoint(later / "d0", state)

    def work(workers: Any) -> Evaluation:
        folder = later if workers.rank == 1 else lab.folder
        predictor: Any = Predictor(Backend(), lab.source, lambda n: folder / n, None, 0)  # type: ignore[arg-type]
        return evaluate_run(workers, predictor, lab.run, lab.data)

    for evaluation in on_ranks(2, work):
        assert other_notes(evaluation) == [
            "the run saved other weights of d0 during this evaluation: it mixes epochs 3 and 4; "
            "evaluate again"
        ]


def test_reasons_of_several_ranks_come_together(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with pytest.raises(FailedDnnsError) as caught:
        on_ranks(
            4,
            lambda workers: Evaluator(
                workers,
                lab.predictor(Backend(["d0", "d3"])),
                lab.dnns,
                "classes",
                NUM_CLASSES,  # type: ignore[arg-type]
            ).run(lab.test, lab.validation),
        )
    assert sorted(caught.value.reasons) == ["d0", "d3"]


def test_dnns_that_predict_something_else_than_the_first_are_left_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.dnns[2].loss = SimpleNamespace(name="mean_squared_error")
    evaluation = evaluate(lab)
    assert [dnn.name for dnn in evaluation.dnns] == ["d0", "d1", "d3"]
    assert evaluation.left_out["d2"] == "it predicts values, but d0 predicts classes: evaluate it with --dnns"


def test_class_labels_with_a_loss_that_says_nothing_of_classes_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path)
    for dnn in lab.dnns:
        dnn.loss = SimpleNamespace(name="mine:loss")
    with pytest.raises(InputError, match="label has 1; with loss mine:loss outputs count as values, because"):
        evaluate(lab)


def test_classes_by_the_metric_of_a_modules_loss_need_an_output_for_each(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    for dnn in lab.dnns:
        dnn.loss, dnn.metrics = SimpleNamespace(name="module"), (MetricConfig(name="accuracy"),)
    evaluate(lab)
    for dnn in lab.dnns:
        arrays = dict.fromkeys(("weights/matrix", "optimizer/momentum"), lab.matrices[0][:, :1])
        state = TrainingState(dnn.name, 4, Position(4, 0), arrays=arrays, fingerprint=lab.source.fingerprint)
        write_checkpoint(tmp_path / dnn.name, state)
    with pytest.raises(InputError, match=r"returns outputs of shape \(1,\) for a sample, allowed with loss"):
        evaluate(lab)


def test_a_metric_named_like_a_score_is_shown_beside_it() -> None:
    scores = {"accuracy": 0.5, "nll": 1.0, "calibration_error": 0.1}
    own = MetricConfig(name="mine:share", shown_as="accuracy")
    strict = MetricConfig(name="accuracy", args={"threshold": 0.9})
    for given, name in ((own, "own accuracy"), (strict, "own accuracy"), (None, "accuracy")):
        dnn: Any = SimpleNamespace(metrics=given and (given,))
        assert metrics_beside(scores, {"loss": 2.0, "accuracy": 0.3}, dnn) == {"loss": 2.0, name: 0.3}
    dnn = SimpleNamespace(metrics=(MetricConfig(name="accuracy"), MetricConfig(name="my:x", shown_as="nll")))
    assert set(metrics_beside(scores, {"accuracy": 0.5, "nll": 3.0}, dnn)) == {"accuracy", "own nll"}
    dnn = SimpleNamespace(metrics=(MetricConfig(name="mean_absolute_error", shown_as="mae"),))
    assert set(metrics_beside({"mse": 1.0, "mae": 2.0}, {"mae": 2.0}, dnn)) == {"mae"}
