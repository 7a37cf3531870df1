"""Rates of an earlier start are used if they are valid, and measured again otherwise."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from hpcbal.config import EnsembleConfig, load_config
from hpcbal.errors import InputError
from hpcbal.policies.rates import RateTable, profile_to_dict
from hpcbal.runtime.resuming.known_rates import known_rates, rate_keys
from hpcbal.telemetry.files.run_directory import RunDirectory

KEYS = {"a": "key of a"}
DATASET = 'data: {dataset: "hpcbal.data:digits"}\n'
DNNS = (
    'dnns: [{name: a, model: "hpcbal.models:softmax", batch_size: 8, stop: {max_epochs: 1},\n'
    "        optimizer: {name: sgd, learning_rate: 0.1}}]\n"
)


def load(folder: Path, more: str = "") -> EnsembleConfig:
    path = folder / "run.yaml"
    path.write_text(DATASET + DNNS + more, encoding="utf-8")
    return load_config(path)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run directory whose profile.json holds one rate of `a`."""
    run = RunDirectory(tmp_path / "out")
    run.root.mkdir()
    profile = profile_to_dict(RateTable({"a": {1: 50.0}}, slots_per_node=2), KEYS)
    run.profile.write_text(json.dumps(profile), encoding="utf-8")
    return run


def test_rates_of_an_earlier_start_are_known(tmp_path: Path, run: RunDirectory):
    table = known_rates(load(tmp_path), run, KEYS, 2)
    assert table.measured == {"a": {1: 50.0}}


def test_rates_of_another_network_are_not(
    tmp_path: Path, run: RunDirectory, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO):
        assert known_rates(load(tmp_path), run, {"a": "another key"}, 2).measured == {}
    assert caplog.messages == [], "none is known, which needs no line"
    assert run.profile.exists()


@pytest.mark.parametrize("text", ["{", "[1, 2]", '{"format": 99}', "\0"])
def test_a_damaged_profile_is_warned_of_and_deleted(
    tmp_path: Path, run: RunDirectory, caplog: pytest.LogCaptureFixture, text: str
):
    run.profile.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert known_rates(load(tmp_path), run, KEYS, 2).measured == {}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"{run.profile}: ")
    assert record.getMessage().endswith("; the rates are measured again")
    assert not run.profile.exists()


def test_a_damaged_file_of_the_users_is_an_error_and_stays(tmp_path: Path, run: RunDirectory):
    given = tmp_path / "given.json"
    given.write_text("{", encoding="utf-8")
    config = load(tmp_path, f"schedule: {{profiling: {{rates: {given}}}}}\n")
    with pytest.raises(InputError, match=r"given\.json: the profile cannot be read"):
        known_rates(config, run, KEYS, 2)
    assert given.exists()
    assert run.profile.exists()


def test_rates_do_not_depend_on_what_changes_no_speed(tmp_path: Path):
    (tmp_path / "run.yaml").write_text(DATASET + DNNS, encoding="utf-8")

    def key(*overrides: str) -> str:
        config = load_config(tmp_path / "run.yaml", overrides)
        return rate_keys(config, (8, 8), 10, "CPU")["a"]

    assert key("dnns.a.optimizer.schedule=cosine", "dnns.a.optimizer.clip_norm=1.0") == key()
    assert key("dnns.a.optimizer.momentum=0.9") != key()
    assert key("slots.per_gpu=2") != key()
