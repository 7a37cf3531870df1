"""The run asks the simulator how long it will last."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.progress import ScheduleSettings
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.events.ensemble import Delta, EpochDone, Started
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable
from hpcbal.runtime.record.forecast import Forecaster, RunPrediction

SPEC = StreamSpec(90, 120, 10, SampleSpec.of((2,), "float32"), LabelSpec(), ring_bytes=100_000)
PASS_S = (90 + 30 / 3) / 50.0  # at 50 samples/s, evaluating three times as fast


def ensemble_of(rates: dict[str, float], paradigm: str = "global", max_epochs: int = 4) -> Ensemble:
    specs = [DnnSpec(name, 8, StopRule(max_epochs=max_epochs)) for name in ("a", "b")]
    table = RateTable({name: {1: rate} for name, rate in rates.items()}, 2)
    settings = ScheduleSettings(
        num_positions=120, delta=Delta(relative=0.1), profile=False, paradigm=paradigm, max_slots_per_dnn=1
    )
    ensemble = Ensemble(specs, Cluster.uniform(1, 2), settings, table)
    ensemble.handle(Started())
    return ensemble


def answer(forecast: Forecaster) -> RunPrediction | None:
    """Wait for the thread."""
    deadline = time.monotonic() + 20.0
    while forecast._asked is not None and time.monotonic() < deadline:
        prediction = forecast.take()
        if prediction is not None:
            return prediction
    return None


@pytest.fixture
def make() -> Callable[..., Forecaster]:
    return lambda **fields: Forecaster(SPEC, **fields)


@pytest.mark.parametrize("paradigm", ["global", "local", "homogeneous", "independent"])
def test_what_is_left_is_predicted_at_any_moment(make: Callable[..., Forecaster], paradigm: str) -> None:
    now = [100.0]

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    ensemble, forecast = ensemble_of({"a": 50.0, "b": 50.0}, paradigm), make(clock=clock)
    forecast.ask(ensemble)
    prediction = answer(forecast)
    assert prediction is not None
    assert prediction.left.remaining_s == pytest.approx(4 * PASS_S)
    for name in ("a", "b"):
        ensemble.handle(EpochDone(name, 0, {"val_accuracy": 0.5}, 1.0))
    forecast.ask(ensemble)  # too soon after the last answer
    assert answer(forecast) is None
    now[0] += 1000.0
    forecast.ask(ensemble)
    later = answer(forecast)
    assert later is not None
    assert later.left.remaining_s == pytest.approx(3 * PASS_S)


def test_a_prediction_reports_when_it_was_asked_for(make: Callable[..., Forecaster]) -> None:
    forecast = make(clock=lambda: 100.0)
    forecast.ask(ensemble_of({"a": 50.0, "b": 50.0}))
    prediction = answer(forecast)
    assert prediction is not None
    assert prediction.asked_s == 100.0


def test_nothing_is_predicted_without_rates(make: Callable[..., Forecaster]) -> None:
    forecast = make()
    forecast.ask(ensemble_of({}, "homogeneous"))
    assert answer(forecast) is None


def test_a_forecast_that_fails_ends_no_run(
    make: Callable[..., Forecaster], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no such future")

    monkeypatch.setattr("hpcbal.runtime.record.forecast.predict", broken)
    forecast = make()
    forecast.ask(ensemble_of({"a": 50.0, "b": 50.0}))
    assert answer(forecast) is None
    assert "could not be predicted" in caplog.text


def test_a_forecast_under_way_does_not_hold_up_the_end() -> None:
    """A process that is done leaves, whatever the simulator is still at."""
    program = (
        "import sys, time; sys.path[:0] = [sys.argv[1]]\n"
        "from test_forecast import SPEC, Forecaster, ensemble_of\n"
        "import hpcbal.runtime.record.forecast as module\n"
        "module.predict = lambda *args, **kwargs: time.sleep(3600)\n"
        "Forecaster(SPEC).ask(ensemble_of({'a': 50.0, 'b': 50.0}))\n"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_run_of_very_many_epochs_is_not_simulated(make: Callable[..., Forecaster]) -> None:
    forecast = make()
    forecast.ask(ensemble_of({"a": 50.0, "b": 50.0}, max_epochs=10**6))
    assert answer(forecast) is None
    assert forecast._asked is None
