"""Valid keys without effect cause a warning with their place; no other key does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config, resolved_yaml
from hpcbal.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[4] / "configs").glob("*.yaml"))
assert CONFIGS, "no configurations were found"
TEXT = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 32, stop: {max_epochs: 9}}
dnns:
  - {name: a, model: m:f}
  - {name: b, model: m:f}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(TEXT, encoding="utf-8")
    return file


def warnings_of(path: Path, *overrides: str) -> list[str]:
    """Warnings, without the directory."""
    warnings: list[str] = []
    load_config(path, overrides, warn=warnings.append)
    return [line.replace(f"{path.parent}/", "") for line in warnings]


# key, value, what an effect takes, and settings with which it has one
IN_VAIN = [
    ("data.partition", "by_class", "with data.access: partitioned", None),
    ("data.max_traversal_gap", "3", "with data.access: partitioned", None),
    ("backend.rates", "{a: {1: 5}, b: {1: 5}}", "with backend.name: emulated", ["backend.name=emulated"]),
    (
        "backend.workers",
        "[{speed: 0.5}]",
        "with backend.name: emulated",
        ["backend.name=emulated", "backend.rates={a: {1: 5}, b: {1: 5}}"],
    ),
    (
        "balance.shares",
        "[2, 1]",
        "with policy: fixed, on DNNs without their own shares",
        ["balance.policy=fixed"],
    ),
    ("balance.shares", "[2, 1]", "with policy: fixed", ["dnns.b.balance=fixed"]),
    ("balance.predictor", "narx", "with policy: lb-bsp-cpu", ["balance.policy=lb-bsp-cpu"]),
    ("balance.predictor", "narx", "with policy: lb-bsp-cpu", ["dnns.a.balance=lb-bsp-cpu"]),
    ("balance.predictor", "narx", "with policy: lb-bsp-cpu", ["defaults.balance=lb-bsp-cpu"]),
    (
        "balance.first_fit",
        "9",
        "with policy: lb-bsp-cpu and predictor: narx",
        ["balance.policy=lb-bsp-cpu", "balance.predictor=narx"],
    ),
    (
        "balance.refit_every",
        "9",
        "with policy: lb-bsp-cpu and",
        ["dnns.b.balance=lb-bsp-cpu", "balance.predictor=narx"],
    ),
    ("balance.max_samples_per_slot", "9", "with a policy other than even", ["dnns.b.balance=fitted"]),
    (
        "dataplane.on_device",
        "false",
        "with normalize at the end of preprocessing",
        ["preprocessing=[{normalize: {}}]"],
    ),
    ("balance.regroup", "false", "with policy: fitted, lb-bsp-cpu or", ["balance.policy=fitted"]),
    ("balance.regroup", "false", "with policy: fitted, lb-bsp-cpu or", ["dnns.b.balance=lb-bsp-cpu"]),
    ("dnns.a.shares", "[1, 2]", "with balance: fixed", ["dnns.a.balance=fixed"]),
    ("defaults.stop.patience", "9", "if it is less than max_epochs", ["dnns.a.stop.max_epochs=10"]),
    ("defaults.stop.min_delta", "0.1", "with patience", ["dnns.a.stop.patience=2"]),
]


@pytest.mark.parametrize(
    ("key", "value", "paradigms"),
    [
        ("schedule.delta", "15%", ["auto", "global", "local"]),
        ("schedule.alpha", "0.5", ["auto", "global"]),
        ("schedule.max_slots_per_dnn", "2", ["auto", "global", "local", "elastic"]),
        ("dataplane.ring_bytes", "99MiB", ["auto", "global", "local", "homogeneous"]),
    ],
)
def test_keys_that_the_paradigm_does_not_use_are_reported(
    path: Path, key: str, value: str, paradigms: list[str]
) -> None:
    for paradigm in ("auto", "global", "local", "homogeneous", "elastic", "independent"):
        found = warnings_of(path, f"{key}={value}", f"schedule.paradigm={paradigm}")
        if paradigm in paradigms:
            assert found == []
        else:
            (message,) = found
            assert f"{key}={value}: got " in message
            assert ", which has an effect only with paradigm: auto" in message


@pytest.mark.parametrize(("key", "value", "needs", "settings"), IN_VAIN)
def test_only_a_key_without_effect_causes_a_warning(
    path: Path, key: str, value: str, needs: str, settings: list[str] | None
) -> None:
    (message,) = warnings_of(path, f"{key}={value}")
    assert message.startswith(f"--set {key}={value}: got ")
    assert f", which has an effect only {needs}" in message
    if settings is not None:
        assert warnings_of(path, f"{key}={value}", *settings) == []


@pytest.mark.parametrize(
    ("schedule", "key", "needs"),
    [
        ("{name: plateau, patience: 9}", "patience", "if it is less than stop.max_epochs"),
        ("{name: cosine, warmup: 9}", "warmup", "in full, if it is less than stop.max_epochs"),
        ("{name: step, at: [3, 9]}", "at", "in full, if all its epochs are before stop.max_epochs"),
    ],
)
def test_a_trial_of_one_epoch_only_warns_of_what_it_never_reaches(
    path: Path, schedule: str, key: str, needs: str
) -> None:
    given = f"defaults.optimizer.schedule={schedule}"
    assert warnings_of(path, given, "defaults.stop.max_epochs=10") == []
    messages = warnings_of(path, given, "defaults.stop.patience=3", "defaults.stop.max_epochs=1")
    assert any(f"which has an effect only {needs}" in message for message in messages)


def test_keys_of_partitioned_data_have_an_effect_with_it(path: Path) -> None:
    path.write_text(TEXT.replace("  - {name: b, model: m:f}\n", ""), encoding="utf-8")
    keys = ("data.partition=by_class", "data.max_traversal_gap=null")
    assert len(warnings_of(path, *keys)) == 2
    assert warnings_of(path, *keys, "data.access=partitioned") == []


def test_sizes_of_samples_have_no_effect_on_parts_that_are_not_chosen_by_size(path: Path) -> None:
    path.write_text(TEXT.replace("  - {name: b, model: m:f}\n", ""), encoding="utf-8")
    sized = ("balance.cost=sum", "balance.gradient_weights=size")
    assert warnings_of(path, *sized, "balance.samples=in-order") == []
    parted = warnings_of(path, *sized, "balance.samples=in-order", "data.access=partitioned")
    assert [line.partition(", which has an effect only ")[2] for line in parted] == [
        "with data.access: shared",
        "with data.access: shared, or with samples: chronica",
        "with data.access: shared, or with samples: chronica",
    ]
    chronica = ("balance.samples=chronica", "data.access=partitioned")
    assert warnings_of(path, *sized, *chronica) == []
    (gap,) = warnings_of(path, "data.max_traversal_gap=3", *chronica)
    assert gap.endswith("only with data.access: partitioned, unless balance.samples is chronica")


@pytest.mark.parametrize(
    ("key", "needs"),
    [
        ("data.lookahead=2", "with data.access: shared"),
        ("balance.max_work_per_slot=5", "with data.access: shared and samples: within-batch"),
    ],
)
def test_parts_have_no_lookahead_and_no_limit_of_work(path: Path, key: str, needs: str) -> None:
    path.write_text(TEXT.replace("  - {name: b, model: m:f}\n", ""), encoding="utf-8")
    assert warnings_of(path, key) == []
    (message,) = warnings_of(path, key, "data.access=partitioned")
    assert message.endswith(f"which has an effect only {needs}")


def test_a_policy_that_no_dnn_uses_causes_a_warning(path: Path) -> None:
    assert warnings_of(path, "balance.policy=fitted", "dnns.a.balance=even") == []
    (message,) = warnings_of(path, "balance.policy=fitted", "dnns.a.balance=even", "dnns.b.balance=even")
    assert message.endswith("got 'fitted', which has an effect only on DNNs without their own balance")


@pytest.mark.parametrize("policy", ["balance.policy=even", "balance={policy: fixed, shares: [2, 1]}"])
def test_regroup_has_no_effect_with_policies_that_never_drop_a_slot(path: Path, policy: str) -> None:
    (message,) = warnings_of(path, policy, "balance.regroup=false")
    assert message.startswith(
        "--set balance.regroup=false: got false, which has an effect only with policy: "
    )


def test_keys_of_fits_have_an_effect_only_with_a_fitted_predictor(path: Path) -> None:
    (message,) = warnings_of(path, "balance.policy=lb-bsp-cpu", "balance.first_fit=9")
    assert message.startswith("--set balance.first_fit=9: got 9")


def test_warnings_name_line_and_key_in_the_order_of_lines(path: Path) -> None:
    path.write_text(TEXT + "balance:\n  predictor: narx\ndata: {partition: by_class}\n", encoding="utf-8")
    assert warnings_of(path) == [
        "run.yaml:6: balance.predictor: got 'narx', which has an effect only with policy: lb-bsp-cpu",
        "run.yaml:7: data.partition: got 'by_class', which has an effect only with data.access: partitioned",
    ]


def test_defaults_that_are_written_out_cause_no_warning(path: Path) -> None:
    text = (
        TEXT + "balance: {predictor: memoryless, first_fit: 500, shares: []}\ndata: {max_traversal_gap: 2}\n"
    )
    path.write_text(text + "backend: {workers: [], rates: {}}\n", encoding="utf-8")
    assert warnings_of(path) == []


def test_nothing_is_balanced_where_each_dnn_has_one_slot(path: Path) -> None:
    path.write_text(TEXT + "schedule: {paradigm: independent}\nbalance: {policy: fitted}\n", encoding="utf-8")
    (warning,) = warnings_of(path)
    assert warning.endswith("a schedule.paradigm other than independent, where each DNN has one slot")


def test_a_sweep_over_policies_uses_the_shares_that_one_of_them_needs(path: Path) -> None:
    sweep = "sweeps: [{name: 'c{balance}', model: m:f, shares: [2, 1], grid: {balance: [%s]}}]\n"
    path.write_text(TEXT + sweep % "even, fixed", encoding="utf-8")
    assert warnings_of(path) == []
    path.write_text(TEXT + sweep % "even, fitted", encoding="utf-8")
    assert warnings_of(path) == [
        "run.yaml:5: sweeps.0.shares: got [2, 1], which has an effect only with balance: fixed"
    ]


def test_a_wrong_file_causes_only_errors_and_no_warnings(path: Path) -> None:
    warnings: list[str] = []
    with pytest.raises(ConfigError):
        load_config(path, ["seed=-1", "balance.predictor=narx"], warn=warnings.append)
    assert warnings == []


@pytest.mark.parametrize("config", CONFIGS, ids=[file.name for file in CONFIGS])
def test_the_configurations_of_the_project_have_no_keys_without_effect(config: Path, tmp_path: Path) -> None:
    assert warnings_of(config) == []
    written = tmp_path / "config.yaml"
    written.write_text(resolved_yaml(load_config(config)), encoding="utf-8")
    assert warnings_of(written) == []
