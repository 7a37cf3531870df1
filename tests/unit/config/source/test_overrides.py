"""`--set a.b=c` reaches every key, and errors quote its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import EnsembleConfig, load_config
from hpcbal.errors import ConfigError

TEXT = """\
defaults:
  optimizer: {name: sgd, learning_rate: 0.1}
  batch_size: 32
  stop: {max_epochs: 10}
dnns:
  - {name: a, model: m:f}
  - {name: a.b, model: m:f}
sweeps:
  - name: r{depth}
    model: m:f
    grid: {args.depth: [1, 2]}
preprocessing:
  - resize: {height: 8, width: 8}
backend: {rates: {a.b: {1: 5}}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(TEXT, encoding="utf-8")
    return file


def load(path: Path, *overrides: str) -> EnsembleConfig:
    return load_config(path, overrides)


def test_a_key_is_set_and_a_missing_section_is_made(path: Path) -> None:
    config = load(path, "seed=7", "schedule.profiling.max_slots=3", "dataplane.ring_bytes=1MiB")
    assert (config.seed, config.schedule.profiling.max_slots, config.dataplane.ring_bytes) == (7, 3, 2**20)


def test_values_are_yaml(path: Path) -> None:
    config = load(path, "walltime=null", "data.args={a: [1, x]}", "name='007'", "slots.per_node=auto")
    assert (config.walltime, config.data.args, config.name) == (None, {"a": [1, "x"]}, "007")


def test_the_last_of_equal_keys_wins(path: Path) -> None:
    assert load(path, "seed=1", "seed=2").seed == 2


def test_a_dnn_is_found_by_name_or_index_even_from_a_sweep(path: Path) -> None:
    config = load(
        path,
        "dnns.a.batch_size=1",
        "dnns.a.b.batch_size=2",
        "dnns.r2.stop.max_epochs=3",
        "dnns.2.args.depth=9",
    )
    assert [dnn.batch_size for dnn in config.dnns] == [1, 2, 32, 32]
    assert [dnn.stop.max_epochs for dnn in config.dnns] == [10, 10, 10, 3]
    assert config.dnns[2].args == {"depth": 9}


def test_changing_one_dnn_leaves_the_others_and_the_defaults(path: Path) -> None:
    config = load(path, "dnns.a.optimizer.learning_rate=9")
    assert [dnn.optimizer.learning_rate for dnn in config.dnns] == [9, 0.1, 0.1, 0.1]


def test_defaults_and_sweeps_can_be_set(path: Path) -> None:
    config = load(path, "defaults.batch_size=5", "sweeps.0.grid.args.depth=[4]")
    assert [dnn.name for dnn in config.dnns] == ["a", "a.b", "r4"]
    assert config.dnns[0].batch_size == 5


def test_list_items_and_keys_with_dots_are_reached(path: Path) -> None:
    config = load(path, "preprocessing.0.resize.height=3", "backend.rates.a.b.1=7", "backend.rates.r1.1=8")
    assert config.preprocessing[0].args["height"] == 3
    assert config.backend.rates == {"a.b": {1: 7.0}, "r1": {1: 8.0}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule.alpha=5", "--set schedule.alpha=5: got 5, allowed: auto, or 0 < alpha <= 1"),
        ("schedule.alpa=1", "--set schedule.alpa=1: unknown key (did you mean 'alpha'?), allowed: paradigm,"),
        ("dnns.a.batch_size=x", "--set dnns.a.batch_size=x: got 'x', allowed: a whole number, 1 or more"),
        (
            "schedule={alpha: 5}",
            "--set schedule={alpha: 5}: schedule.alpha: got 5, allowed: auto, or 0 < alpha <= 1",
        ),
        ("seed.x=1", "--set seed.x=1: seed: got {'x': 1}, allowed: a whole number"),
        (
            "dnns.c.batch_size=1",
            "--set dnns.c.batch_size=1: dnns has no 'c', allowed: a name or an index from 0 to 3",
        ),
        (
            "dnns.optimizer.learning_rate=1",
            "--set dnns.optimizer.learning_rate=1: dnns has no 'optimizer', allowed: a name or an index from"
            " 0 to 3 (did you mean 'defaults.optimizer.learning_rate'?)",
        ),
        (
            "dnns.r11.batch_size=1",
            "--set dnns.r11.batch_size=1: dnns has no 'r11', allowed: a name or an index from 0 to"
            " 3 (did you mean 'r1'?)",
        ),
        (
            "preprocessing.1.resize.height=1",
            "--set preprocessing.1.resize.height=1: preprocessing has no item '1',",
        ),
        ("alpha", "--set alpha: got 'alpha', allowed: key=value, e.g. schedule.alpha=0.9"),
        ("=3", "--set =3: got '=3', allowed: key=value, e.g. schedule.alpha=0.9"),
        ("a..b=3", "--set a..b=3: got 'a..b=3', allowed: key=value, e.g. schedule.alpha=0.9"),
        ("seed=[1", "--set seed=[1: not valid YAML: while parsing a flow sequence"),
        ("name.first=1", "--set name.first=1: name: got {'first': 1}, allowed: a directory name"),
    ],
)
def test_a_wrong_override_is_reported_with_its_text(path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(path, override)
    assert any(line.startswith(message) for line in caught.value.problems), caught.value


def test_a_name_may_not_be_set_to_that_of_another_dnn(path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"dnns.1.name: got 'a.b' for more than one DNN \(first at --set dnns.a.name"
    ):
        load(path, "dnns.a.name=a.b")


def test_a_scalar_is_not_a_section(path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--set defaults.batch_size.x=1: defaults.batch_size is 32, not a section"
    ):
        load(path, "defaults.batch_size.x=1")


def test_problems_of_the_file_and_of_overrides_come_together(path: Path) -> None:
    path.write_text(TEXT + "seed: -1\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path, "slots.per_node=0", "bad", "checkpoint.interval_s=x")
    assert len(caught.value.problems) == 4
    assert caught.value.problems[0].startswith(f"{path}:15: seed: got -1")
    assert all(line.startswith("--set ") for line in caught.value.problems[1:])


@pytest.mark.parametrize(
    ("override", "keys", "meant"),
    [
        (
            "balance=fitted",
            "policy, shares, predictor, first_fit, refit_every, max_samples_per_slot and 5 more",
            "policy",
        ),
        ("backend=emulated", "name, collective, precision, rates, workers", "name"),
        (
            "dnns.a.optimizer=adam",
            "name, learning_rate, momentum, weight_decay, nesterov, args and 3 more",
            "name",
        ),
        (
            "balance=4",
            "policy, shares, predictor, first_fit, refit_every, max_samples_per_slot and 5 more",
            "",
        ),
    ],
)
def test_a_word_for_a_whole_section_is_refused_with_the_key_that_takes_it(
    path: Path, override: str, keys: str, meant: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(path, override)
    section, _, given = override.partition("=")
    shown = given if given.isdigit() else f"'{given}'"
    hint = f" (did you mean '--set {section}.{meant}={given}'?)" if meant else ""
    problem = f"--set {override}: got {shown}, allowed: a mapping with the keys {keys}{hint}"
    assert caught.value.problems == (problem,)
