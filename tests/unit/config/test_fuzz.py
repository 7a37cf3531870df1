"""Any configuration can be used, or is refused with lines that name a place; nothing else happens.

A short part of bench/soak_fuzz.py, with fixed seeds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.config_changes import Change, change
from support.config_trial import Answer, faults_of, refusal, try_change
from support.strange_data import try_data

from hpcbal.config import load_config
from hpcbal.config.checks.warnings import check_shares
from hpcbal.errors import ConfigError

PARTS = [range(first, first + 25) for first in range(0, 100, 25)]


@pytest.mark.parametrize("numbers", PARTS, ids=lambda numbers: str(numbers[0]))
def test_changed_configurations_are_used_or_refused(tmp_path: Path, numbers: range) -> None:
    faults = {}
    for number in numbers:
        folder = tmp_path / str(number)
        folder.mkdir()
        given = change(number, seed=1)
        _, found = try_change(given, folder)
        if found:
            faults[f"{number} {given.base}: {given.what}"] = found
    assert not faults


def test_strange_datasets_are_read_with_their_classes_or_refused(tmp_path: Path) -> None:
    faults, tried = {}, set()
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        what, found = try_data(number, 1, folder)
        tried.add(what)
        if found:
            faults[f"{number} {what}"] = found
    assert not faults
    assert len(tried) > 20


def test_a_change_is_the_same_wherever_it_is_made() -> None:
    assert [change(number) for number in range(5)] == [change(number) for number in range(5)]
    assert change(0) != change(0, seed=1)


GOOD = (
    b"dnns: [{name: a, model: 'hpcbal.models:softmax', batch_size: 8, stop: {max_epochs: 1}, optimizer: {}}]"
)


def test_a_trial_finds_what_is_wrong_with_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.getcwd()
    assert try_change(Change(0, "a", "", GOOD), tmp_path) == (False, [])
    assert os.getcwd() == before
    monkeypatch.setattr("hpcbal.cli.validate.run", lambda args: 1 // 0)
    accepted, (fault,) = try_change(Change(0, "a", "", GOOD), tmp_path)
    assert not accepted
    assert fault.startswith("validate: traceback: ZeroDivisionError")
    assert faults_of(Answer(0, "fine\n", "")) == faults_of(Answer(2, "", "run.yaml:1: no\n")) == []
    for answer in (
        Answer(1, "", "oops"),
        Answer(2, "", ""),
        Answer(0, "\x1b[2J", ""),
        Answer(0, "x" * 3000, ""),
        Answer(2, "", "Traceback (most recent call last)"),
    ):
        assert len(faults_of(answer)) == 1, answer
    assert refusal(Answer(2, "", "dataplane.ring_bytes: got 1, allowed: more"))
    Path("shares.yaml").write_bytes(
        b"balance: {policy: fixed, shares: [2, 1, 1]}\n"
        + GOOD.replace(b"optimizer: {}", b"optimizer: {name: sgd, learning_rate: 0.1}")
    )
    with pytest.raises(ConfigError) as refused:
        check_shares(load_config("shares.yaml"), num_slots=2)
    assert not refusal(Answer(2, "", str(refused.value))), "this depends on the allocation"
