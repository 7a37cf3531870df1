"""A limit for slots below an even share causes a warning with DNNs and figures, before a run if possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import EnsembleConfig, load_config
from hpcbal.config.checks.warnings import over_limit, told_limit
from hpcbal.policies.batching import split_evenly
from hpcbal.runtime.balance.decided_split import step_task

TEXT = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 65, stop: {max_epochs: 9}}
balance: {policy: fitted, max_samples_per_slot: 20}
dnns:
  - {name: a, model: m:f}
  - {name: b, model: m:f, batch_size: 8}
  - {name: c, model: m:f, balance: even}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(TEXT, encoding="utf-8")
    return file


def warnings_of(path: Path, *overrides: str, beforehand: bool = True) -> list[str]:
    """Warnings, without the directory."""
    warnings: list[str] = []
    load_config(path, overrides, warn=warnings.append, beforehand=beforehand)
    return [line.replace(f"{path.parent}/", "") for line in warnings]


def over(config: EnsembleConfig, num_slots: int, num_train: int | None = None) -> dict[str, str]:
    return over_limit(config, dict.fromkeys("abc", num_slots), num_train)


def test_a_group_whose_even_share_is_above_the_limit_is_found(path: Path) -> None:
    config = load_config(path)
    assert over(config, 3) == {"a": "22 of 65 samples on 3 slots"}
    assert over(config, 1) == {"a": "65 of 65 samples on 1 slot"}
    assert over(config, 4) == {}, "17 each"
    assert over(config, 2, num_train=30) == {}, "no step has more than the data"
    assert over_limit(config, {"b": 1}) == {}
    assert over_limit(load_config(path, ["balance.max_samples_per_slot=null"]), {"a": 1}) == {}


@pytest.mark.parametrize("num_slots", range(1, 9))
def test_it_is_found_exactly_where_a_run_allows_more_than_the_limit(path: Path, num_slots: int) -> None:
    config = load_config(path)
    limit = config.balance.max_samples_per_slot
    allowed = max(step_task(65, num_slots, limit).maxima)
    assert ("a" in over(config, num_slots)) == (allowed > 20)
    assert allowed == max(20, *split_evenly(65, num_slots))


def test_the_message_names_some_dnns_and_counts_the_others() -> None:
    one = told_limit(20, {"a": "22 of 65 samples on 3 slots"})
    assert one == (
        "got 20, less than an even share, which is always allowed: a (22 of 65 samples on 3 slots); "
        "shares stay even"
    )
    many = told_limit(20, {f"dnn{i}": "x" for i in range(6)})
    assert many.endswith(": dnn0 (x), dnn1 (x), dnn2 (x), dnn3 (x), 2 more; shares stay even")


def test_the_file_alone_causes_a_warning_where_it_limits_groups(path: Path) -> None:
    assert warnings_of(path) == [], "with enough slots the limit is kept"
    assert warnings_of(path, "schedule.max_slots_per_dnn=4") == []
    (message,) = warnings_of(path, "schedule.max_slots_per_dnn=3")
    assert message == (
        "run.yaml:2: balance.max_samples_per_slot: got 20, less than an even share, which is always allowed: "
        "a (22 of 65 samples on 3 slots); shares stay even (schedule.max_slots_per_dnn allows no more slots)"
    )
    assert warnings_of(path, "schedule.max_slots_per_dnn=3", beforehand=False) == []
    assert warnings_of(path, "schedule.max_slots_per_dnn=3", "dnns.a.balance=even") == []
