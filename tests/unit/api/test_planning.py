"""Plans and simulations from Python are those of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import hpcbal
from hpcbal.cli import main

VALUES: dict[str, Any] = {
    "name": "pair",
    "defaults": {
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "batch_size": 4,
        "stop": {"max_epochs": 2},
    },
    "dnns": [{"name": name, "model": "hpcbal.models:softmax"} for name in ("a", "b")],
    "backend": {"name": "emulated", "rates": {"a": {1: 10}, "b": {1: 9}}},
    "slots": {"per_node": 2},
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pair.yaml").write_text(yaml.safe_dump(VALUES), encoding="utf-8")


def answer_of(verb: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    """JSON and text of the command line."""
    assert main([verb, "pair.yaml", *words, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert main([verb, "pair.yaml", *words]) == 0
    return values, capsys.readouterr().out.rstrip("\n")


def test_a_plan_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    values, text = answer_of(
        "plan", capsys, "--slots", "4", "--samples", "100", "--set", "schedule.alpha=0.9"
    )
    plan = hpcbal.plan("pair.yaml", slots=4, samples=100, set={"schedule.alpha": 0.9})
    assert json.loads(json.dumps(plan)) == values
    assert str(plan) == text
    assert capsys.readouterr() == ("", "")


def test_a_dict_is_planned_like_its_file() -> None:
    from_values = hpcbal.plan(VALUES, nodes=2, memory="1GiB")
    from_file = hpcbal.plan("pair.yaml", nodes=2, memory="1GiB")
    assert {**from_values, "launch": 0, "command": 0} == {**from_file, "launch": 0, "command": 0}


def test_a_simulation_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--slots", "2,4", "--samples", "100", "--paradigm", "all", "--cost", "load_s=3", "--seeds", "1")
    values, text = answer_of("simulate", capsys, *words)
    found = hpcbal.simulate(VALUES, slots=[2, 4], samples=100, paradigm="all", cost={"load_s": 3}, seeds=1)
    assert json.loads(json.dumps(found)) == values
    assert str(found) == text


def test_wrong_options_are_errors_and_end_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(hpcbal.InputError, match=r"^slots: got '0', allowed: a whole number, 1 or more"):
        hpcbal.plan(VALUES, slots=0)
    with pytest.raises(hpcbal.InputError, match=r"^nodes: not allowed with slots$"):
        hpcbal.plan(VALUES, slots=1, nodes=2)
    with pytest.raises(hpcbal.InputError, match="give either CONFIG or preset NAME"):
        hpcbal.simulate()
    with pytest.raises(hpcbal.ConfigError) as caught:
        hpcbal.plan({**VALUES, "seed": "x"})
    assert caught.value.key == "seed"
    assert capsys.readouterr() == ("", "")


def test_warnings_are_warnings_of_python() -> None:
    with pytest.warns(hpcbal.HpcbalWarning, match="batch_size"):
        hpcbal.plan(VALUES, samples=3)
