"""The rate that an epoch reports is that of its last training step, wherever the group resumed."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.config import DnnConfig
from hpcbal.events.history import EpochRecord
from hpcbal.runtime.group.callbacks import LearningRates

SCHEDULES: dict[str, Any] = {
    "cosine": {"name": "cosine", "warmup": 0.5},
    "plateau": {"name": "plateau", "patience": 1},
    "own": {"name": "math:hypot"},
}
NUM_TRAIN = 20


class Given:
    """A replica that knows its rate."""

    broken: Exception | None = None
    rate: float | None = None

    def set_learning_rate(self, rate: float) -> None:
        self.rate = rate


def rates(schedule: Any) -> LearningRates:
    optimizer = {"name": "sgd", "learning_rate": 0.1, "schedule": schedule}
    dnn = {"name": "a", "model": "m:f", "optimizer": optimizer, "batch_size": 8, "stop": {"max_epochs": 5}}
    return LearningRates(DnnConfig.model_validate(dnn), NUM_TRAIN)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_group_that_resumes_among_the_validation_samples_reports_the_same_rate(kind: str) -> None:
    whole = rates(SCHEDULES[kind])
    history: list[EpochRecord] = []
    replica: Any = Given()
    for epoch in range(1, 4):
        for start in range(0, NUM_TRAIN, 8):
            whole.set_rate(replica, history, start)
        history.append(EpochRecord(epoch, epoch - 1, {"val_accuracy": 0.5}))
        resumed = rates(SCHEDULES[kind])
        assert replica.rate is not None
        assert whole.of_last_epoch(history) == resumed.of_last_epoch(history) == replica.rate


def test_a_constant_rate_is_not_reported() -> None:
    assert rates(None).of_last_epoch([EpochRecord(1, 0)]) is None


def test_a_schedule_that_is_gone_is_left_to_the_next_step() -> None:
    gone = rates("json:JSONDecoder.rate")
    assert gone.of_last_epoch([EpochRecord(1, 0)]) is None
    replica: Any = Given()
    gone.set_rate(replica, [], 0)
    assert "has no 'rate'" in str(replica.broken)
