"""Models and jobs survive as bytes, and damaged bytes are refused, never partly used."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from hpcbal.policies.batching.networks import NUM_INPUTS, Arima, Narx, Recurrent, num_weights
from hpcbal.policies.batching.speed import Ema, SpeedHistory, SpeedPredictor
from hpcbal.speed_models import FitJob
from hpcbal.speed_models.fit_process import DamagedModelError, pack_job, pack_model, unpack_job, unpack_model

rng = np.random.default_rng(0)
HISTORY = SpeedHistory(*rng.uniform(0.1, 1.0, (3, 2, 9)))
MODELS: dict[str, SpeedPredictor] = {
    "arima": Arima(np.array([[0.1, 0.2], [np.nan, np.nan]]), np.array([0.3, np.nan])),
    "lstm": Recurrent("lstm", rng.standard_normal((2, num_weights("lstm"))), np.ones(2), np.ones(2)),
    "narx": Narx(
        np.zeros((2, NUM_INPUTS)),
        np.ones((2, NUM_INPUTS)),
        rng.standard_normal((2, NUM_INPUTS, 3)),
        np.zeros((2, 3)),
        np.ones((2, 3)),
        np.ones((2, NUM_INPUTS)),
        np.zeros(2),
        np.ones(2),
        np.ones(2),
    ),
    "rnn": Recurrent("rnn", rng.standard_normal((2, num_weights("rnn"))), np.ones(2), np.ones(2)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_survives(name: str) -> None:
    kind, num_workers, model = unpack_model(pack_model(name, MODELS[name]))
    assert (kind, num_workers) == (name, 2)
    np.testing.assert_array_equal(model.predict(HISTORY), MODELS[name].predict(HISTORY))


@pytest.mark.parametrize("previous", [None, Ema(), MODELS["narx"]])
def test_a_job_survives_with_the_model_that_it_starts_from(previous: SpeedPredictor | None) -> None:
    job = unpack_job(pack_job(FitJob("narx", HISTORY, previous)))
    np.testing.assert_array_equal(job.recording.cpu, HISTORY.cpu)
    assert job.name == "narx"
    assert isinstance(job.previous, Narx) == isinstance(previous, Narx)


@pytest.mark.parametrize("place", [0.02, 0.3, 0.5, 0.7])
def test_a_flipped_byte_is_noticed(place: float) -> None:
    data = bytearray(pack_model("narx", MODELS["narx"]))
    found = []
    for offset in range(0, 400, 7):
        broken = bytearray(data)
        broken[(int(place * len(data)) + offset) % len(data)] ^= 0x55
        try:
            found.append(unpack_model(bytes(broken)))
        except DamagedModelError:
            continue
    for kind, _, model in found:  # a byte on which nothing depends, such as a time in the archive
        assert kind == "narx"
        np.testing.assert_array_equal(model.predict(HISTORY), MODELS["narx"].predict(HISTORY))


@pytest.mark.parametrize("length", [0, 1, 100, 1500])
def test_a_torn_file_is_noticed(length: int) -> None:
    with pytest.raises(DamagedModelError, match="cannot be read"):
        unpack_model(pack_model("narx", MODELS["narx"])[:length])


def packed(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


NOTE = np.array(["1", "arima"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"phi": np.zeros((2, 2))}, "not written by hpcbal"),
        ({"note": np.array(["9", "arima"])}, "in format 9; this hpcbal reads format 1"),
        ({"note": np.array(["1", "oracle"])}, "it is 'oracle'"),
        ({"note": NOTE, "phi": np.zeros((2, 2))}, "this one"),
        ({"note": NOTE, "phi": np.zeros((2, 2)), "theta": np.zeros(3)}, "different numbers of workers"),
        ({"note": NOTE, "phi": np.zeros((2, 2)), "theta": np.zeros((2, 3))}, "do not fit each other"),
        ({"note": NOTE, "phi": np.zeros((2, 2)), "theta": np.array(["a", "b"])}, "theta: not floating-point"),
    ],
)
def test_bytes_that_are_not_a_model_are_refused(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DamagedModelError, match=message):
        unpack_model(packed(**arrays))


def test_a_job_without_its_recording_is_refused() -> None:
    with pytest.raises(DamagedModelError, match="recording of the job is not whole"):
        unpack_job(packed(note=NOTE, **{"recording/speeds": np.zeros((2, 3))}))
