"""The section `prune` of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.config.load import load_config as load
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.errors import ConfigError
from hpcbal.policies.pruning.committee import Committee
from hpcbal.policies.pruning.rules import Asha, Median

HEAD = """\
name: sweep
data: {dataset: hpcbal.data:digits}
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 8, stop: {max_epochs: 9}}
sweeps:
  - {name: "a-{seed}", model: "hpcbal.models:softmax", grid: {seed: [1, 2]}}
  - {name: "b-{seed}", model: "hpcbal.models:softmax", grid: {seed: [1, 2]}}
"""


def write(tmp_path: Path, prune: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(f"{HEAD}prune: {prune}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("prune", "rule"),
    [
        ("", None),
        ("{rule: none}", None),
        ("{rule: asha}", Asha(3, 1)),
        ("{rule: asha, reduction: 4, min_epochs: 2}", Asha(4, 2)),
        ("{rule: median}", Median(1, 5)),
        ("{rule: median, warmup_epochs: 3, min_peers: 2}", Median(3, 2)),
        ("{rule: committee}", Committee(1, 0.005)),
        ("{rule: committee, min_epochs: 2, tolerance: 0.1, samples: 9}", Committee(2, 0.1)),
    ],
)
def test_the_state_machine_gets_the_rule(tmp_path: Path, prune: str, rule: object) -> None:
    config = load_config(write(tmp_path, prune))
    assert settings_of(config, 10).prune == rule
    assert {spec.may_be_pruned for spec in specs_of(config)} == {rule is not None}


def test_patterns_choose_the_dnns(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "{rule: asha, dnns: [a-*, b-2]}"))
    covered = [spec.dnn_id for spec in specs_of(config) if spec.may_be_pruned]
    assert covered == ["a-1", "a-2", "b-2"]


@pytest.mark.parametrize(
    ("prune", "problem"),
    [
        (
            "{rule: ash}",
            "prune.rule: got 'ash', allowed: none, asha, median, committee (did you mean 'asha'?)",
        ),
        ("{rule: asha, reduction: 1}", "prune.reduction: got 1, allowed: a whole number, 2 or more"),
        ("{rule: asha, min_epochs: 0}", "prune.min_epochs: got 0, allowed: a whole number, 1 or more"),
        ("{rule: asha, eta: 3}", "prune.eta: unknown key"),
        ("{rule: asha, dnns: []}", "prune.dnns: got [], allowed: a list of names or patterns"),
        ("{rule: asha, dnns: [c-*]}", "prune.dnns.0: got 'c-*', which no DNN matches"),
        ("{rule: asha, dnns: 'a-*'}", "prune.dnns: got 'a-*', allowed: a list of names or patterns"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, prune: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, prune))
    assert f"run.yaml:7: {problem}" in str(caught.value)


@pytest.mark.parametrize(
    ("prune", "warning"),
    [
        ("{rule: asha, min_peers: 2}", "prune.min_peers: got 2, which has an effect only with rule: median"),
        ("{rule: median, reduction: 2}", "prune.reduction: got 2, which has an effect only with rule: asha"),
        (
            "{rule: asha, min_epochs: 9}",
            "prune.rule: got 'asha', which has an effect only on DNNs that train",
        ),
        (
            "{rule: asha, dnns: [a-1]}",
            "prune.rule: got 'asha', which has an effect only on two or more DNNs",
        ),
        (
            "{rule: median}",
            "prune.rule: got 'median', which has an effect only on two or more DNNs, and with median on more "
            "than prune.min_peers",
        ),
        ("{dnns: [a-1]}", "prune.dnns: got ['a-1'], which has an effect only with a rule"),
    ],
)
def test_a_key_without_effect_causes_a_warning(tmp_path: Path, prune: str, warning: str) -> None:
    warnings: list[str] = []
    load(write(tmp_path, prune), warn=warnings.append)
    assert any(warning in line for line in warnings), warnings


def test_a_rule_with_enough_dnns_causes_no_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    for prune in ("{rule: asha}", "{rule: median, min_peers: 3}"):
        load(write(tmp_path, prune), warn=warnings.append)
    assert not warnings


def test_dnns_that_are_compared_watch_the_same_metric(tmp_path: Path) -> None:
    path = write(tmp_path, "{rule: asha}")
    b = ("dnns.b-1.stop.monitor=val_loss", "dnns.b-2.stop.monitor=val_loss")
    with pytest.raises(ConfigError) as caught:
        load_config(path, b)
    (problem,) = caught.value.problems
    assert "run.yaml:7: prune.dnns: the DNNs are compared with each other" in problem
    assert "(val_accuracy (max): a-1, a-2; val_loss (min): b-1, b-2)" in problem
    warnings: list[str] = []
    load(path, (*b, "prune.dnns=[a-*]"), warn=warnings.append)
    load(path, (*b, "prune.rule=none"), warn=warnings.append)
    assert not warnings


def test_losses_that_do_not_mean_the_same_cause_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path, "{rule: asha}")
    smooth = "dnns.a-1.label_smoothing=0.1"
    warnings: list[str] = []
    load(path, (smooth,), warn=warnings.append)
    assert not warnings, "they watch val_accuracy"
    load(path, (smooth, "defaults.stop.monitor=val_loss"), warn=warnings.append)
    (warning,) = warnings
    assert "prune.rule: got 'asha', which compares val_loss of DNNs that differ in label_smoothing" in warning


def test_losses_by_which_tables_rank_dnns_cause_a_warning_unless_a_metric_is_common(tmp_path: Path) -> None:
    path = write(tmp_path, "{rule: none}")
    own = ("dnns.a-1.loss=mse", "dnns.a-1.metrics=[mae]")
    warnings: list[str] = []
    load(path, ("dnns.a-1.loss=mse", "dnns.a-1.metrics=[accuracy]"), warn=warnings.append)
    load(path, ("defaults.loss=mse", "defaults.label_smoothing=0.0"), warn=warnings.append)
    assert not warnings
    load(path, own, warn=warnings.append)
    (warning,) = warnings
    assert "dnns: the DNNs differ in loss and have no metric in common, so tables compare losses" in warning


def test_a_committee_needs_dnns_that_predict_the_same(tmp_path: Path) -> None:
    text = HEAD.replace('{name: "b-{seed}",', '{name: "b-{seed}", loss: mean_squared_error,')
    path = tmp_path / "run.yaml"
    path.write_text(f"{text}prune: {{rule: committee}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"do not predict the same \(classes: a-1, a-2; values: b-1, b-2\)"):
        load_config(path)
    path.write_text(f"{text}prune: {{rule: committee, dnns: [a-*]}}\n", encoding="utf-8")
    assert load_config(path).prune.covers("a-1")
    text = HEAD.replace('{name: "b-{seed}",', '{name: "b-{seed}", loss: {x: mse, y: mse},')
    path.write_text(f"{text}prune: {{rule: committee, dnns: [b-*]}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prune.rule: got committee, but b-1, b-2 have several outputs"):
        load_config(path)


def test_a_search_for_the_committee_needs_dnns_that_predict_the_same(tmp_path: Path) -> None:
    search = "{sampler: tpe, for: committee, samples: 9, startup: 2, space: {seed: {integers: [1, 9]}}}"
    more = f'  - {{name: "c-{{sample}}", model: "hpcbal.models:softmax", search: {search}}}\n'
    path = tmp_path / "run.yaml"
    path.write_text(f"{HEAD}{more}prune: {{samples: 9}}\n", encoding="utf-8")
    warnings: list[str] = []
    config = load(path, warn=warnings.append)
    assert config.combined == ("search.for", config.dnns)
    assert not warnings
    for own, text in (
        ("mse", "do not predict the same (classes: a-1, a-2, c-0 and 1 more; values: b-1, b-2)"),
        ("{x: mse, y: mse}", "b-1, b-2 have several outputs"),
    ):
        head = HEAD.replace('{name: "b-{seed}",', f'{{name: "b-{{seed}}", loss: {own},')
        path.write_text(f"{head}{more}", encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        (problem,) = caught.value.problems
        assert f"searches: search.for: got committee, but {'the DNNs ' * (own == 'mse')}{text}" in problem
        assert problem.endswith("; use for: best, or give the others their own run")


def test_a_committee_may_watch_different_metrics(tmp_path: Path) -> None:
    text = HEAD.replace('{name: "b-{seed}",', '{name: "b-{seed}", stop: {monitor: val_loss},')
    path = tmp_path / "run.yaml"
    path.write_text(f"{text}prune: {{rule: committee}}\n", encoding="utf-8")
    assert {dnn.stop.watched for dnn in load_config(path).dnns} == {"val_accuracy", "val_loss"}
