"""Schedules of a user's own: functions, objects, classes, and what goes wrong in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.config import DnnConfig
from hpcbal.errors import UserCodeError
from hpcbal.runtime.group.callbacks import LearningRates


@pytest.fixture(autouse=True)
def _schedules_are_importable(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_schedules.py").write_text(
        "class Halving:\n"
        "    def __init__(self, first=0.8):\n"
        "        self.first = first\n"
        "    def __call__(self, step):\n"
        "        return self.first * 0.5**step\n"
        "halving = Halving()\n"
        "def shrinking(step, steps_per_epoch, first=1.0):\n"
        "    return first / (steps_per_epoch + step)\n"
        "def hungry(step, steps_per_epoch):\n"
        "    raise MemoryError\n"
    )
    (tmp_path / "broken_schedules.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))


class Replica:
    """Keeps the rates that it was given."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.broken: Exception | None = None

    def set_learning_rate(self, rate: float) -> None:
        self.rates.append(rate)


def run(schedule: Any, num_steps: int = 3) -> Replica:
    """The first steps of a DNN with 4 steps of 8 samples in an epoch."""
    optimizer = {"name": "sgd", "learning_rate": 0.1, "schedule": schedule}
    dnn = DnnConfig.model_validate(
        {"name": "a", "model": "m:f", "optimizer": optimizer, "batch_size": 8, "stop": {"max_epochs": 5}}
    )
    rates, replica = LearningRates(dnn, 32), Replica()
    for step in range(num_steps):
        history = [SimpleNamespace(metrics={})] * (step // 4)
        rates.set_rate(replica, history, step % 4 * 8)  # type: ignore[arg-type]
    return replica


@pytest.mark.parametrize(
    "schedule",
    ["own_schedules:halving", {"name": "own_schedules:Halving", "args": {"first": 0.8}}],
)
def test_what_takes_only_the_step_is_called_with_the_step(schedule: Any) -> None:
    replica = run(schedule)
    assert (replica.rates, replica.broken) == ([0.8, 0.4, 0.2], None)


def test_a_function_gets_the_steps_of_an_epoch_and_its_arguments() -> None:
    replica = run({"name": "own_schedules:shrinking", "args": {"first": 2.0}}, num_steps=6)
    assert replica.rates == [2.0 / (4 + step) for step in range(6)]


def test_a_schedule_of_keras_decays_as_in_keras() -> None:
    arguments = {"initial_learning_rate": 0.5, "decay_steps": 2, "decay_rate": 0.25}
    replica = run({"name": "keras.optimizers.schedules:ExponentialDecay", "args": arguments})
    assert replica.rates == pytest.approx([0.5, 0.25, 0.125])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broken_schedules:f", "DNN a: optimizer.schedule: broken_schedules:f: .*division by zero"),
        ("own_schedules:halvin", "own_schedules:halvin: own_schedules .*has no 'halvin'"),
    ],
)
def test_a_module_that_cannot_be_imported_fails_the_dnn_and_not_the_run(name: str, text: str) -> None:
    replica = run(name)
    assert isinstance(replica.broken, UserCodeError)
    with pytest.raises(UserCodeError, match=text):
        raise replica.broken


def test_a_lack_of_memory_in_a_schedule_reaches_the_other_ranks() -> None:
    assert isinstance(run("own_schedules:hungry").broken, MemoryError)
