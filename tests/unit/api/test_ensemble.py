"""DNNs that predict together: the mean of what they predict, by their weights."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpcbal
from hpcbal.api import ensemble as ensemble_module
from hpcbal.api.ensemble import Ensemble, open_ensemble
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec
from hpcbal.errors import HpcbalWarning, InputError
from hpcbal.events.history import Position
from hpcbal.runtime.evaluating.predicting import Predictor
from hpcbal.runtime.evaluating.request import TrainedRun

NAMES = ("a", "b", "c")
MATRICES = {name: np.eye(2) * (index + 1.0) for index, name in enumerate(NAMES)}


class Points:
    """Pairs of numbers."""

    num_classes = 2
    sample_spec = SampleSpec.of((2,), "float32")
    label_spec = LabelSpec()
    class_names = ("no", "yes")

    def __len__(self) -> int:
        return 10

    def read(self, sample_id: int) -> tuple[Any, Any]:
        if sample_id == 3:
            raise OSError("unreadable")
        return np.full(2, sample_id, np.float32), 0

    def describe(self, sample_id: int) -> str:
        return f"point {sample_id}"


class Replica:
    num_bytes = 8

    def state(self) -> dict[str, Any]:
        return {"weights/matrix": np.zeros((2, 2))}

    def load_state(self, arrays: Any) -> None:
        self.matrix = arrays["weights/matrix"]

    def predict(self, batch: Any) -> np.ndarray:
        if not self.matrix.any():
            raise RuntimeError("no such layer")
        with np.errstate(over="ignore"):
            return np.asarray(batch.x @ self.matrix, float)

    def metrics(self, sums: Any) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class Backend:
    is_closed = False

    def build(self, *_: Any) -> Replica:
        return Replica()

    def close(self) -> None:
        self.is_closed = True


class Settings(SimpleNamespace):
    outputs = ()
    loss_weights = None

    @property
    def has_own_loss(self) -> bool:
        return getattr(self.loss, "name", None) == "module"

    def for_prediction(self) -> Any:
        return self


def ensemble(folder: Path, weights: tuple[float, ...], matrices: Any = MATRICES) -> tuple[Ensemble, Backend]:
    points: Any = Points()
    source = PreprocessedSamples(points, (), seed=1, validation_fraction=0.3)
    dnns: Any = tuple(Settings(name=name, batch_size=4, loss=None) for name in NAMES[: len(weights)])
    for name, matrix in matrices.items():
        arrays = {"weights/matrix": matrix}
        state = TrainingState(name, 1, Position(1, 0), arrays=arrays, fingerprint=source.fingerprint)
        write_checkpoint(folder / name, state)
    config: Any = SimpleNamespace(
        preprocessing=(), seed=1, dataplane=SimpleNamespace(max_sample_bytes=None, on_device=False)
    )
    run = TrainedRun(config, folder, dnns, {"d": "it failed"}, "test")
    backend: Any = Backend()
    predictor = Predictor(backend, source, lambda name: folder / name, None, 1)
    return Ensemble(run, source, backend, predictor, weights), backend


def test_predictions_are_the_weighted_mean(tmp_path: Path) -> None:
    found, backend = ensemble(tmp_path, (0.25, 0.0, 0.75))
    x = np.arange(18, dtype=np.float32).reshape(9, 2)
    with found:
        np.testing.assert_allclose(found.predict(x), x * (0.25 * 1 + 0.75 * 3))
        np.testing.assert_allclose(found.predict([x[2], x[0]]), x[[2, 0]] * 2.5)
        np.testing.assert_allclose(found.predict(x.astype(np.float64)), x * 2.5)  # in the type of the data
    assert backend.is_closed
    assert found.members == {"a": 0.25, "b": 0.0, "c": 0.75}
    assert (found.left_out, found.classes) == ({"d": "it failed"}, ("no", "yes"))
    assert repr(found) == f"<hpcbal.Ensemble of {str(tmp_path)!r}: a 0.25, c 0.75>"


def test_samples_may_come_as_those_of_other_libraries_do(tmp_path: Path) -> None:
    found, _ = ensemble(tmp_path, (1.0,))
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    for given in ((x, np.arange(5)), list(zip(x, range(5), strict=True)), x.tolist()):
        np.testing.assert_allclose(found.predict(given), x)


def test_samples_may_come_from_a_dataset(tmp_path: Path) -> None:
    found, _ = ensemble(tmp_path, (1.0,))
    with pytest.warns(HpcbalWarning, match=r"sample 3 of the given dataset cannot be used: .*unreadable"):
        predictions = found.predict(Points())  # type: ignore[arg-type]
    expected = np.repeat(np.arange(10.0)[:, None], 2, axis=1)
    expected[3] = np.nan
    np.testing.assert_allclose(predictions, expected)
    validation = found.predict("validation")
    ids = found._trained.validation_ids
    np.testing.assert_allclose(validation[:, 0], np.where(ids == 3, np.nan, ids))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "samples: the dataset has no samples"),
        (
            None,
            "samples: got None, allowed: samples in an array or a list, a dataset, test, validation, or the ",
        ),
        (3, "samples: got a value of type int, allowed: samples in an array or a list, "),
        (
            np.zeros((9, 3), np.float32),
            r"samples: got an array of shape \(3,\) and type float32, allowed: arrays",
        ),
        (np.zeros(2, np.float32), "samples: .* as in data.dataset, .*; put a single one into a list$"),
    ],
)
def test_samples_of_another_kind_are_refused_in_one_sentence(
    tmp_path: Path, given: Any, message: str, recwarn: pytest.WarningsRecorder
) -> None:
    found, _ = ensemble(tmp_path, (1.0,))
    with pytest.raises(InputError, match=f"^{message}"):
        found.predict(given)
    assert not recwarn.list


def test_samples_that_cannot_be_used_are_one_warning(tmp_path: Path) -> None:
    found, _ = ensemble(tmp_path, (1.0,))
    rows: Any = [np.ones(2), np.ones(3), None, np.ones(2)]
    with pytest.warns(
        HpcbalWarning, match=r"^sample 1 of the given samples cannot be used, nor can 1 more: "
    ) as said:
        predictions = found.predict(rows)
    assert len(said) == 1
    assert np.isnan(predictions).all(axis=1).tolist() == [False, True, True, False]
    with pytest.raises(
        InputError, match=r"no sample of the given samples can be used: sample 0 .* 2 NaN of 2"
    ):
        found.predict(np.full((2, 2), np.nan))


def test_a_sample_for_which_one_member_predicts_nan_is_nan_and_named(tmp_path: Path) -> None:
    matrices = {**MATRICES, "b": np.diag([1.0, np.finfo(np.float64).max])}
    found, _ = ensemble(tmp_path, (0.5, 0.5), matrices)
    with pytest.warns(HpcbalWarning, match=r"^sample 1 .* cannot be used: .*: b predicts NaN or infinity$"):
        predictions = found.predict(np.array([[1.0, 0.0], [1.0, 3.0]], np.float32))
    np.testing.assert_allclose(predictions, [[1.0, 0.0], [np.nan, np.nan]])


def test_a_dnn_that_cannot_predict_is_named(tmp_path: Path) -> None:
    found, _ = ensemble(tmp_path, (0.5, 0.5), {**MATRICES, "b": np.zeros((2, 2))})
    with pytest.raises(InputError, match=r"DNN b cannot predict: .*no such layer; name others with dnns"):
        found.predict(np.ones((1, 2)))


def test_only_two_ways_to_select(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="select: got 'best', allowed: mean, greedy"):
        open_ensemble(tmp_path, "best", ())


@pytest.mark.parametrize("weights", ["first", 3, True])
def test_only_weights_that_are_kept(tmp_path: Path, weights: Any) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(InputError, match=r"^weights: "):
        hpcbal.load(tmp_path).ensemble(weights=weights)


def test_settings_that_come_too_late_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise RuntimeError("Intra op parallelism cannot be modified after initialization.")

    dnn = SimpleNamespace(name="a", model="hpcbal.models:mlp", framework="tensorflow")
    config = SimpleNamespace(backend=SimpleNamespace(name="auto"), slots=SimpleNamespace(device="cpu"))
    run: Any = SimpleNamespace(config=config, dnns=[dnn])
    monkeypatch.setattr(ensemble_module, "NativeBackend", refuses)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    with pytest.raises(InputError, match=r"TensorFlow computes in this process already.*call ensemble\(\)"):
        ensemble_module._backend(run)
    jax = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setitem(sys.modules, "keras", jax)
    with pytest.raises(InputError, match="Keras computes with jax in this process"):
        ensemble_module._backend(run)


def test_it_needs_no_mpi() -> None:
    """Importing MPI begins it in the process of a script."""
    import subprocess

    program = "import sys, hpcbal.api.ensemble; sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
