"""Sweeps that draw at random: what is drawn, from which seed, and errors at the search's own lines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.config import EnsembleConfig, load_config, resolved_yaml
from hpcbal.config.schema.prune import Distribution, SearchConfig
from hpcbal.errors import ConfigError

HEAD = """\
defaults:
  optimizer: {name: sgd, learning_rate: 0.1, momentum: 0.9}
  batch_size: 32
  stop: {max_epochs: 10}
sweeps:
  - name: "net-{sample}-{learning_rate}NAME"
    model: m:f
"""
DRAWN = [{"a": 0.7589, "b": 2}, {"a": 0.7043, "b": 6}]
SPACE = "{optimizer.learning_rate: {log_uniform: [1e-4, 1.0]}, args.layers: {choice: [[8, 16], [32]]}}"


def load(tmp_path: Path, search: str, more: str = "", overrides: tuple[str, ...] = ()) -> EnsembleConfig:
    path = tmp_path / "run.yaml"
    head = HEAD.replace("NAME", "-b{batch_size}" if "batch_size" in more else "")
    path.write_text(f"{head}    search: {search}\n{more}", encoding="utf-8")
    return load_config(path, overrides)


def rates(config: EnsembleConfig) -> list[float]:
    return [dnn.optimizer.learning_rate for dnn in config.dnns]


def test_each_sample_is_a_dnn_with_its_values_in_its_name(tmp_path: Path) -> None:
    config = load(tmp_path, f"{{samples: 20, space: {SPACE}}}")
    assert len(config.dnns) == 20
    for number, dnn in enumerate(config.dnns):
        rate = dnn.optimizer.learning_rate
        assert 1e-4 <= rate <= 1.0
        assert dnn.name == f"net-{number}-{rate}"
        assert dnn.args["layers"] in ([8, 16], [32])
        assert dnn.optimizer.momentum == 0.9
    assert len(set(rates(config))) == 20
    assert {tuple(dnn.args["layers"]) for dnn in config.dnns} == {(8, 16), (32,)}


def test_the_resolved_configuration_holds_what_was_drawn(tmp_path: Path) -> None:
    config = load(tmp_path, f"{{samples: 3, space: {SPACE}}}")
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(resolved_yaml(config), encoding="utf-8")
    assert load_config(resolved) == config


def test_the_seed_decides_the_runs_unless_the_search_has_its_own(tmp_path: Path) -> None:
    plain, own = f"{{samples: 4, space: {SPACE}}}", f"{{samples: 4, seed: 1, space: {SPACE}}}"
    first = rates(load(tmp_path, plain))
    assert rates(load(tmp_path, plain)) == first
    assert rates(load(tmp_path, plain, overrides=("seed=5",))) != first
    assert rates(load(tmp_path, own, overrides=("seed=5",))) == rates(load(tmp_path, own))


def test_draws_are_the_same_in_every_version() -> None:
    search = SearchConfig.model_validate(
        {"samples": 2, "space": {"a": {"uniform": [0, 1]}, "b": {"integers": [1, 6]}}}
    )
    assert search.draws(7, "net") == DRAWN


def test_more_samples_and_more_keys_keep_the_first_ones(tmp_path: Path) -> None:
    few = rates(load(tmp_path, f"{{samples: 3, space: {SPACE}}}"))
    space = SPACE.replace("}}", "}, optimizer.momentum: {uniform: [0, 0.5]}}")
    assert rates(load(tmp_path, f"{{samples: 5, space: {space}}}"))[:3] == few


def test_every_combination_of_a_grid_gets_the_same_samples(tmp_path: Path) -> None:
    search = f"{{samples: 2, space: {SPACE}}}"
    config = load(tmp_path, search, "    grid: {batch_size: [8, 16]}\n    zip: {args.a: [1]}\n")
    assert [dnn.batch_size for dnn in config.dnns] == [8, 8, 16, 16]
    assert rates(config)[:2] == rates(config)[2:]


@settings(deadline=None)
@given(st.floats(0.0, 1.0, exclude_max=True))
def test_draws_stay_inside_their_bounds(u: float) -> None:
    def drawn(**given: list[float]) -> float:
        return Distribution.model_validate(given).draw(u)

    assert -0.123456 <= drawn(uniform=[-0.123456, 0.1]) <= 0.1
    assert 1.23456e-5 <= drawn(log_uniform=[1.23456e-5, 1e3]) <= 1e3
    assert drawn(integers=[3, 5]) in (3, 4, 5)
    assert drawn(choice=[1.0, 2.0]) in (0, 1)


@pytest.mark.parametrize("kind", ["uniform", "log_uniform"])
@pytest.mark.parametrize(("low", "high"), [(0.9999, 0.99999), (10_000.1, 10_000.9), (1e-4, 1.0)])
def test_numbers_between_close_bounds_differ(kind: str, low: float, high: float) -> None:
    distribution = Distribution.model_validate({kind: [low, high]})
    found = [distribution.draw(i / 400) for i in range(400)]
    assert len(set(found)) == 400
    assert max(len(str(value)) for value in found) <= 10


def test_distributions_are_even() -> None:
    shares = [i / 1000 for i in range(1000)]

    def values(**given: list[float]) -> list[float]:
        return [Distribution.model_validate(given).draw(u) for u in shares]

    assert sum(values(uniform=[0, 2])) / 1000 == pytest.approx(1.0, rel=0.01)
    logs = [math.log10(value) for value in values(log_uniform=[1e-4, 1.0])]
    assert sum(logs) / 1000 == pytest.approx(-2.0, rel=0.01)
    assert [values(integers=[1, 4]).count(i) for i in (1, 2, 3, 4)] == [250] * 4


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        (
            "{samples: 0, space: {args.a: {choice: [1]}}}",
            "samples: got 0, allowed: a whole number, 1 or more",
        ),
        ("{samples: 2}", "missing key 'space'"),
        ("{space: {args.a: {choice: [1]}}}", "missing key 'samples'"),
        ("{samples: 2, space: {}}", "space: got {}, allowed: {key of a DNN: distribution}"),
        ("{samples: 2, space: {args.a: {normal: [0, 1]}}}", "space.args.a.normal: unknown key"),
        ("{samples: 2, space: {args.a: {}}}", "space.args.a: got nothing, allowed: one of uniform"),
        (
            "{samples: 2, space: {args.a: {choice: [1], uniform: [0, 1]}}}",
            "space.args.a: got uniform, choice, allowed: one of",
        ),
        ("{samples: 2, space: {args.a: {uniform: [1, 0]}}}", "space.args.a.uniform: got [1.0, 0.0], allowed"),
        ("{samples: 2, space: {args.a: {log_uniform: [0, 1]}}}", "space.args.a.log_uniform: got [0.0, 1.0]"),
        (
            "{samples: 2, space: {args.a: {integers: [1, 2.5]}}}",
            "search.space.args.a.integers.1: got 2.5 in the list, allowed: [lower, upper] with lower < upper",
        ),
        ("{samples: 2, space: {args.a: {uniform: [1, 2, 3]}}}", "got [1, 2, 3], allowed: [lower, upper]"),
        (
            "{samples: 2, space: {args.a: {uniform: [1, .nan]}}}",
            "got .nan in the list, allowed: [lower",
        ),
        ("{samples: 2, space: {args.a: {choice: []}}}", "got [], allowed: a list of at least one value"),
        (
            "{samples: 2, space: {args.a: [1, 2]}}",
            "space.args.a: got [1, 2], allowed: a mapping with the keys uniform, log_uniform, integers",
        ),
        (
            "{samples: 2, space: {lr: {uniform: [0, 1]}}}",
            "unknown key (did you mean 'optimizer.learning_rate'?)",
        ),
        ("{samples: 2, space: {name: {choice: [a]}}}", "allowed: keys of a DNN other than name"),
        (
            "{samples: 2, sapce: {}, space: {args.a: {choice: [1]}}}",
            "sapce: unknown key (did you mean 'space'?)",
        ),
        (
            "{samples: 200000, space: {args.a: {uniform: [0, 1]}}}",
            "makes 200000 DNNs, allowed: at most 100000",
        ),
        ("[1]", "search: got [1], allowed"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, search: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, search)
    lines = [line for line in caught.value.problems if problem in line]
    assert lines, caught.value.problems
    assert all(":8: " in line or ":6: " in line for line in lines)
    assert not any("dnns: got []" in line for line in caught.value.problems)


def test_a_key_is_in_one_of_grid_zip_and_search(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimizer.learning_rate in search and in grid or zip"):
        load(tmp_path, f"{{samples: 2, space: {SPACE}}}", "    grid: {optimizer.learning_rate: [1.0]}\n")


def test_a_value_that_a_key_does_not_allow_is_reported_at_its_distribution(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.yaml:8: .*got 0, allowed: a whole number, 1 or more"):
        load(
            tmp_path,
            "{samples: 9, space: {optimizer.learning_rate: {choice: [0.1]}, batch_size: {choice: [0]}}}",
        )


def test_a_search_that_proposes_nothing_is_warned_of(tmp_path: Path) -> None:
    path, found = tmp_path / "run.yaml", []
    head = HEAD.replace("-{learning_rate}NAME", "")
    for samples in (11, 10):
        path.write_text(f"{head}    search: {{sampler: tpe, samples: {samples}, space: {SPACE}}}\n", "utf-8")
        warned: list[str] = []
        load_config(path, warn=warned.append)
        found.append([line for line in warned if "none is proposed: give more than startup (10)" in line])
    assert [len(lines) for lines in found] == [0, 1]


def test_keys_that_only_proposals_use_are_warned_of(tmp_path: Path) -> None:
    path, found = tmp_path / "run.yaml", []
    head = HEAD.replace("-{learning_rate}NAME", "")
    for keys in ("", "sampler: tpe, ", "for: best, startup: 10, "):
        text = f"samples: 11, space: {SPACE}"
        text = f"for: committee, startup: 5, {keys}{text}" if "best" not in keys else keys + text
        path.write_text(f"{head}    search: {{{text}}}\n", "utf-8")
        warned: list[str] = []
        load_config(path, warn=warned.append)
        found.append({line.partition("search.")[2] for line in warned if "only with sampler: tpe" in line})
    assert found == [
        {
            "for: got 'committee', which has an effect only with sampler: tpe",
            "startup: got 5, which has an effect only with sampler: tpe",
        },
        set(),
        set(),
    ]
