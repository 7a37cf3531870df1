"""The section `slots` of an ensemble: slots that share a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import EnsembleConfig, load_of_kind
from hpcbal.config.scheduling import settings_of
from hpcbal.errors import ConfigError

TEXT = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 8, stop: {max_epochs: 1}}
dnns: [{name: a, model: "hpcbal.models:softmax"}]
"""


TRAINED = "backend.name: auto, tensorflow or torch"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ([], None),
        (["schedule.max_slots_per_dnn=3"], 3),
        (["slots.per_gpu=2"], 1),
        (["slots.per_gpu=2", "schedule.max_slots_per_dnn=1"], 1),
    ],
)
def test_a_dnn_gets_one_slot_where_slots_share_gpus(
    path: Path, changes: list[str], limit: int | None
) -> None:
    assert settings_of(load_of_kind(EnsembleConfig, path, changes), 10).max_slots_per_dnn == limit


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["slots.per_gpu=0"], "slots.per_gpu=0: got 0, allowed: a whole number, 1 or more"),
        (
            ["slots.per_gpu=2", "schedule.max_slots_per_dnn=2"],
            "got 2 beside schedule.max_slots_per_dnn 2, allowed: 1, because ranks of one DNN",
        ),
        (["slots.per_gpu=2", "schedule.max_slots_per_dnn=null"], "beside schedule.max_slots_per_dnn null"),
        (["slots.per_gpu=2", "data.access=partitioned"], "got 2 beside partitioned data, allowed: 1"),
    ],
)
def test_ranks_of_one_dnn_do_not_share_a_gpu(path: Path, changes: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as failure:
        load_of_kind(EnsembleConfig, path, changes)
    assert problem in str(failure.value)


def test_on_cores_no_gpu_is_shared(path: Path) -> None:
    warnings: list[str] = []
    config = load_of_kind(EnsembleConfig, path, ["slots.per_gpu=2", "slots.device=cpu"], warn=warnings.append)
    assert settings_of(config, 10).max_slots_per_dnn is None
    (line,) = warnings
    assert line.endswith(
        "slots.per_gpu=2: got 2, which has an effect only with slots.device: auto or gpu, and " + TRAINED
    )
