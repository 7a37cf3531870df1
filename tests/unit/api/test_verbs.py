"""Calls become command lines, and leave the process as it was."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

import hpcbal
from hpcbal.api.verbs import (
    arguments_for,
    changes,
    naming_arguments,
    options,
    path_word,
    unchanged_process,
)
from hpcbal.config import add_import_roots
from hpcbal.errors import DataError, OutputError


def test_arguments_become_options() -> None:
    assert options(slots_per_node=4, open_data=True, profile=None, no_plots=False, output=Path("a b")) == [
        "--slots-per-node=4",
        "--open-data",
        "--output=a b",
    ]
    assert options(slots=(1, 2), dnns=(), cost={"load_s": 3.0, "build_s": 1}) == [
        "--slots=1,2",
        "--cost=load_s=3.0",
        "--cost=build_s=1",
    ]
    assert changes({"a.b": "x", "c": [1]}) == ['--set=a.b="x"', "--set=c=[1]"]
    assert [path_word("-x.yaml"), path_word(Path("y"))] == ["./-x.yaml", "y"]


def test_a_configuration_is_a_path_or_a_dict() -> None:
    with pytest.raises(hpcbal.InputError, match="config: got a int, allowed: the path of a YAML file, or"):
        arguments_for("plan", 5, [])  # type: ignore[arg-type]


def test_changes_are_a_dict() -> None:
    with pytest.raises(hpcbal.InputError, match="set: got a list, allowed: a dict of values by dotted key"):
        changes(["a.b=x"])  # type: ignore[arg-type]


def test_a_path_that_no_system_takes_is_refused() -> None:
    with pytest.raises(hpcbal.InputError, match="got a path with a NUL character"), naming_arguments():
        Path("a\0b").resolve()
    with pytest.raises(ValueError, match="another"), naming_arguments():
        raise ValueError("another")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("--dnns: no DNN matches 'z'", "dnns: no DNN matches 'z'"),
        ("argument --slots-per-node: got '0'", "slots_per_node: got '0'"),
        (
            "give it with --data-args, then 'hpcbal run x --resume'",
            "give it with data_args, then 'hpcbal run x --resume'",
        ),
        ("-- and a--b are no options", "-- and a--b are no options"),
        ("argument --output/-o: got an empty name", "output: got an empty name"),
    ],
)
def test_errors_name_arguments_and_no_options(said: str, shown: str) -> None:
    cause = OSError("gone")
    for kind in (hpcbal.InputError, DataError, OutputError):
        with pytest.raises(kind) as caught, naming_arguments():
            raise kind(said) from cause
        assert (str(caught.value), caught.value.__cause__) == (shown, cause)
    problems = hpcbal.ConfigError([f"--set a=1: {said}"])
    with pytest.raises(hpcbal.ConfigError) as whole, naming_arguments():
        raise problems
    assert whole.value is problems


def test_a_verb_leaves_no_traces_in_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    before = (list(sys.path), dict(os.environ), dict(sys.path_importer_cache))
    with unchanged_process():
        add_import_roots(tmp_path / "x.yaml")
        assert os.environ["KERAS_BACKEND"] == "tensorflow"
        assert str(tmp_path) in sys.path
    assert (sys.path, dict(os.environ), dict(sys.path_importer_cache)) == before


def test_threads_leave_no_traces_of_each_other(tmp_path: Path) -> None:
    """The second one to begin would otherwise keep what the first one has changed."""
    before, has_begun, may_end = list(sys.path), threading.Event(), threading.Event()

    def first() -> None:
        with unchanged_process():
            add_import_roots(tmp_path / "x.yaml")
            has_begun.set()
            may_end.wait(0.3)

    def second() -> None:
        assert has_begun.wait(60.0)
        with unchanged_process():
            may_end.set()
            threads[0].join(0.3)

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sys.path == before
