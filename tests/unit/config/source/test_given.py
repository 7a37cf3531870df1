"""A dict is the same configuration as a YAML file of the same content."""

from __future__ import annotations

import enum
import functools
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpcbal.config import load_config, resolved_yaml
from hpcbal.config.source.given import GivenConfig, overrides_of
from hpcbal.errors import ConfigError
from hpcbal.models import softmax
from hpcbal.telemetry.claim.same_config import is_same_config

VALUES: dict[str, Any] = {
    "name": "a",
    "data": {"args": {}, "validation_fraction": 0.25},
    "defaults": {
        "optimizer": {"name": "sgd", "learning_rate": 1e-3},
        "batch_size": 4,
        "stop": {"max_epochs": 2},
    },
    "dnns": [{"name": "no", "model": "hpcbal.models:softmax"}],
    "backend": {"name": "emulated", "rates": {"no": {1: 10.0}}},
}


def test_a_dict_gives_the_same_configuration_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(yaml.safe_dump(VALUES), encoding="utf-8")
    from_file, from_values = load_config(file), load_config(GivenConfig(VALUES))
    assert from_values == from_file
    assert is_same_config(resolved_yaml(from_values), resolved_yaml(from_file))
    file.write_text(GivenConfig(VALUES).text, encoding="utf-8")
    assert load_config(file) == from_values


def test_a_dict_without_a_name_is_called_ensemble() -> None:
    config = load_config(GivenConfig({key: value for key, value in VALUES.items() if key != "name"}))
    assert (config.name, config.output.dir) == ("ensemble", "runs/ensemble")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("$SCRATCH/runs", "/scratch/me/runs"),
        ("${SCRATCH}/a$$b", "/scratch/me/a$b"),
        ("~/runs", "/home/me/runs"),
    ],
)
def test_the_output_directory_may_have_variables(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("HOME", "/home/me")
    assert load_config(GivenConfig({**VALUES, "output": {"dir": given}})).output.dir == expected


def test_a_variable_of_the_output_directory_that_is_not_set() -> None:
    with pytest.raises(
        ConfigError, match=r"output\.dir: got '\$NO_SUCH/x', but the environment variable NO_SUCH is"
    ):
        load_config(GivenConfig({**VALUES, "output": {"dir": "$NO_SUCH/x"}}))


def test_numbers_of_numpy_paths_and_callables_become_plain(tmp_path: Path) -> None:
    given = {
        "a": np.float64(0.5),
        "b": np.int64(3),
        "c": np.arange(2),
        "d": (1, True, None),
        "e": tmp_path,
        "f": softmax,
        "g": {1: np.str_("text")},
    }
    assert yaml.safe_load(GivenConfig(given).text) == {
        "a": 0.5,
        "b": 3,
        "c": [0, 1],
        "d": [1, True, None],
        "e": str(tmp_path),
        "f": f"{softmax.__module__}:softmax",
        "g": {1: "text"},
    }


def test_what_ranks_cannot_import_is_named_with_its_key() -> None:
    def inside() -> None:
        pass

    for value, shown in ((lambda: 1, "<lambda>"), (inside, "inside"), (functools.partial(inside), "partial")):
        with pytest.raises(ConfigError) as caught:
            GivenConfig({"dnns": [{"model": value}]})
        error = caught.value
        assert (error.key, error.file, error.line) == ("dnns.0.model", "", None)
        assert shown in str(error)
        assert "which other processes cannot import" in str(error)


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def other() -> None:
        pass

    return other


def plain() -> None:
    pass


class Maker:
    def make(self) -> None:
        pass


@functools.cache
def cached() -> None:
    pass


def test_another_callable_of_the_same_name_is_not_imported_instead() -> None:
    for value in (wrapped(plain), Maker().make):
        with pytest.raises(ConfigError, match="cannot import under its name"):
            GivenConfig({"model": value})
    for value in (cached, Maker, Maker.make):
        assert GivenConfig({"model": value}).text == f"model: {__name__}:{value.__qualname__}\n"


class Size(str, enum.Enum):  # noqa: UP042 - its text is that of the member
    SMALL = "small"


def test_unusual_values_are_themselves_or_refused() -> None:
    given = {"a": Size.SMALL, "b": np.float32, "c": np.array([0.5, None], object), "d": float("inf")}
    plain = {"a": "small", "b": "numpy:float32", "c": [0.5, None], "d": float("inf")}
    assert yaml.safe_load(GivenConfig(given).text) == plain
    assert [yaml.safe_load(text.partition("=")[2]) for text in overrides_of(given)] == [*plain.values()]
    assert yaml.safe_load(overrides_of({"x": {"y": [float("inf"), "1", "a\nb"]}})[0][2:]) == {
        "y": [float("inf"), "1", "a\nb"]
    }
    for value, text in (({("a", 1): 2}, "got a tuple as a key"), (np.longdouble(1), "got a longdouble")):
        with pytest.raises(ConfigError, match=text):
            GivenConfig({"x": value})


def test_values_that_yaml_lacks_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        GivenConfig({"a": object(), "b": {"c": {1, 2}}})
    assert [problem.key for problem in caught.value.problems] == ["a", "b.c"]
    assert "got a set, allowed: text, numbers" in str(caught.value)


def test_problems_of_a_dict_have_keys_and_no_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(GivenConfig({**VALUES, "seed": -1, "slot": {}}))
    keys = {problem.key for problem in caught.value.problems}
    assert "seed" in keys
    assert {problem.where for problem in caught.value.problems} == {"config"}
    assert all(problem.startswith("config: ") for problem in caught.value.problems)


def test_problems_of_a_file_have_file_line_and_key(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("seed: 1\nslots:\n  per_node: many\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file, ["dnns=[{name: a, model: 'm:f'}]", "walltime=-1"])
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.problems == caught.value.problems
    assert (error.key, error.file, error.line) == ("slots.per_node", str(file), 3)
    of_set = next(problem for problem in error.problems if problem.key == "walltime")
    assert (of_set.file, of_set.line, of_set.where) == ("", None, "--set walltime=-1")


def test_changes_keep_their_types() -> None:
    changes = {"seed": 3, "name": "5", "walltime": None, "schedule.alpha": 1e-5, "preprocessing": []}
    texts = overrides_of({**changes, "data.args": {"path": "ä: [\n"}})
    assert texts[:2] == ["seed=3", 'name="5"']
    config = load_config(GivenConfig(VALUES), [text for text in texts if "data" not in text])
    assert (config.seed, config.name, config.walltime) == (3, "5", None)
    assert yaml.safe_load(texts[-1].partition("=")[2]) == {"path": "ä: [\n"}


SCRIPT = """\
import json
from hpcbal.config.source.given import GivenConfig
def net(): pass
class Data:
    @classmethod
    def make(cls): pass
print(json.dumps(GivenConfig({"a": net, "b": Data.make, "c": "__main__:net", "d": "__main__"}).text))
"""


def test_what_a_script_defines_has_the_name_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, timeout=60, check=True)
    assert yaml.safe_load(json.loads(done.stdout)) == {
        "a": "train:net",
        "b": "train:Data.make",
        "c": "train:net",
        "d": "__main__",
    }


def test_what_is_typed_at_a_prompt_cannot_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT.encode(), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert b"config: a: got net, which other processes cannot import" in done.stderr


def test_an_object_that_can_be_called_is_told_from_a_function() -> None:
    class Net:
        def __call__(self) -> None: ...

    with pytest.raises(ConfigError) as caught:
        GivenConfig({"dnns": [{"model": Net()}]})
    assert "got an object, a Net, allowed: a function that makes it" in str(caught.value)
    assert "lambda" not in str(caught.value)
