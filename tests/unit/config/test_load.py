"""The meaning of a configuration file, and the errors of a wrong one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbal.config import EnsembleConfig, load_config, resolved_yaml
from hpcbal.config.checks.warnings import check_parts, check_shares
from hpcbal.config.schema.operations import OperationConfig
from hpcbal.errors import MOST_PROBLEMS, ConfigError

GOOD = """\
name: demo
defaults:
  optimizer: {name: sgd, learning_rate: 1e-2, momentum: 0.9}
  batch_size: 32
  stop: {patience: 3, max_epochs: 10}
preprocessing:
  - resize: {height: 8, width: 6}
  - random_flip
  - normalize: {mean: [1, 2.5], std: 0.5}
dnns:
  - name: a
    model: hpcbal.models:softmax
    optimizer: {learning_rate: 0.1}
    stop: {patience: null}
  - name: b
    model: hpcbal.models:softmax
    optimizer: {name: adam, learning_rate: 0.3}
    batch_size: 8
walltime: 01:30:00
dataplane: {ring_bytes: 64MiB}
"""
MakeFile = Callable[..., Path]


@pytest.fixture
def make_file(tmp_path: Path) -> MakeFile:
    def make(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return make


def problems_of(path: Path, *overrides: str) -> list[str]:
    """Problems of a configuration, without its directory."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [line.replace(f"{path.parent}/", "") for line in caught.value.problems]


def test_keys_get_their_values_and_defaults(make_file: MakeFile) -> None:
    config = load_config(make_file(GOOD))
    first, second = config.dnns
    assert (config.name, config.seed, config.schedule.alpha) == ("demo", 0, "auto")
    assert config.output.dir == "runs/demo"
    assert config.walltime == 5400.0
    assert config.dataplane.ring_bytes == 64 * 2**20
    assert config.data.dataset == "hpcbal.data:digits"
    assert (first.batch_size, second.batch_size) == (32, 8)


def test_defaults_fill_in_what_a_dnn_omits(make_file: MakeFile) -> None:
    first, second = load_config(make_file(GOOD)).dnns
    assert (first.optimizer.name, first.optimizer.learning_rate, first.optimizer.momentum) == (
        "sgd",
        0.1,
        0.9,
    )
    assert (first.stop.patience, first.stop.max_epochs) == (None, 10)
    assert second.stop.patience == 3


def test_a_schedule_that_has_a_name_takes_nothing_from_the_default(make_file: MakeFile) -> None:
    text = GOOD.replace("momentum: 0.9}", "schedule: {name: cosine, length: 8, warmup: 2}}")
    named = text.replace("optimizer: {learning_rate: 0.1}", "optimizer: {schedule: {name: step, at: [3]}}")
    first, _ = load_config(make_file(named)).dnns
    schedule = first.optimizer.schedule
    assert schedule is not None
    assert (schedule.name, schedule.at, schedule.warmup, schedule.length) == ("step", (3.0,), 0.0, None)
    assert first.optimizer.learning_rate == 0.01
    shorter = text.replace("optimizer: {learning_rate: 0.1}", "optimizer: {schedule: {warmup: 1}}")
    first, _ = load_config(make_file(shorter)).dnns
    schedule = first.optimizer.schedule
    assert schedule is not None
    assert (schedule.name, schedule.warmup, schedule.length) == ("cosine", 1.0, 8.0)


def test_an_optimizer_that_names_its_algorithm_takes_nothing_from_the_default(make_file: MakeFile) -> None:
    second = load_config(make_file(GOOD)).dnns[1]
    assert (second.optimizer.name, second.optimizer.momentum) == ("adam", 0.0)


def test_operations_have_all_their_arguments(make_file: MakeFile) -> None:
    config = load_config(make_file(GOOD))
    assert config.preprocessing[:2] == (
        OperationConfig("resize", {"height": 8, "width": 6}),
        OperationConfig("random_flip", {"horizontal": True, "vertical": False}),
    )
    assert config.preprocessing[2].args["mean"] == (1.0, 2.5)


def test_name_and_output_follow_the_file_name(make_file: MakeFile) -> None:
    text = GOOD.replace("name: demo\n", "", 1)
    config = load_config(make_file(text, "my run.yaml"))
    assert (config.name, config.output.dir) == ("my-run", "runs/my-run")


def test_a_configuration_survives_pickling_and_is_frozen(make_file: MakeFile) -> None:
    config = load_config(make_file(GOOD))
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3


def test_resolved_yaml_loads_to_the_same_configuration(make_file: MakeFile) -> None:
    config = load_config(make_file(GOOD))
    assert load_config(make_file(resolved_yaml(config), "resolved.yaml")) == config


def test_text_that_looks_like_a_number_survives_resolving(make_file: MakeFile) -> None:
    config = load_config(
        make_file(GOOD.replace("name: a\n", 'name: a\n    args: {x: "1e-3", y: "no", z: 1e-9}\n'))
    )
    again = load_config(make_file(resolved_yaml(config), "resolved.yaml"))
    assert again.dnns[0].args == {"x": "1e-3", "y": "no", "z": 1e-9}


def test_a_delta_is_samples_per_second_or_a_share(make_file: MakeFile) -> None:
    absolute = load_config(make_file(GOOD + "schedule: {delta: 7}\n")).schedule.delta_rule()
    relative = load_config(make_file(GOOD + "schedule: {delta: 15%}\n")).schedule.delta_rule()
    assert (absolute.absolute, absolute.relative) == (7.0, None)
    assert (relative.absolute, relative.relative) == (None, 0.15)


@pytest.mark.parametrize(("monitor", "mode"), [("val_accuracy", "max"), ("val_loss", "min"), ("loss", "min")])
def test_the_mode_of_a_stop_rule_follows_the_monitor(make_file: MakeFile, monitor: str, mode: str) -> None:
    config = load_config(make_file(GOOD), [f"defaults.stop.monitor={monitor}"])
    rule = config.dnns[1].stop.rule()
    assert (rule.monitor, rule.mode, rule.patience, rule.max_epochs) == (monitor, mode, 3, 10)


WRONG = [
    ("schedule: {alpha: 1.5}", "schedule.alpha: got 1.5, allowed: auto, or 0 < alpha <= 1"),
    ("schedule: {alpha: .nan}", "schedule.alpha: got .nan, allowed: auto, or 0 < alpha <= 1"),
    ("schedule: {alpha: yes}", "schedule.alpha: got 'yes', allowed: auto, or 0 < alpha <= 1"),
    ("seed: 1.0", "seed: got 1.0, allowed: a whole number from 0 to 2**32 - 1"),
    ("seed: true", "seed: got true, allowed: a whole number from 0 to 2**32 - 1"),
    ("schema: 2", "schema: got 2, allowed: 1"),
    ("sweeps: [3]", "sweeps.0: got 3, allowed: a mapping with name, grid, zip or search, and keys of a DNN"),
    ("backend: {workers: [3]}", "backend.workers.0: got 3, allowed: a list of workers such as"),
    ("schema: true", "schema: got true, allowed: 1"),
    ("schema: 1.0", "schema: got 1.0, allowed: 1"),
    ("schema: '1'", "schema: got '1', allowed: 1; this is text: remove the quotes"),
    ("stall_timeout_s: '9'", "stall_timeout_s: got '9', allowed: seconds, 1 or more; this is text: rem"),
    (
        "slots: [null, {a: true}]",
        "slots: got [null, {'a': true}], allowed: a mapping with the keys per_node,",
    ),
    (f"seed: {10**30}", "seed: got 1000000000000000000000000000000, allowed: a whole number from 0 to 2**32"),
    (
        "data: {max_traversal_gap: 1e-320}",
        "data.max_traversal_gap: got 1e-320, allowed: null or a number above 0, at least 1e-12",
    ),
    (
        "backend: {rates: {a: {1: 5, '1': 6}}}",
        "backend.rates.a: got the rate on 1 slot twice, as 1 and as '1'; keep one",
    ),
    ('output: {dir: "a\\x1b[2Jb"}', "output.dir: got 'a\\x1b[2Jb', allowed: a path of printable characters"),
    (f"output: {{dir: {'x' * 300}}}", "output.dir: got 'xxx"),
    ("alpha: 1", "alpha: unknown key (did you mean 'schedule.alpha'?), allowed: schema, kind, name,"),
    ("batch_size: 3", "batch_size: unknown key (did you mean 'defaults.batch_size'?), allowed: schema,"),
    ("epochs: 3", "epochs: unknown key (did you mean 'defaults.stop.max_epochs'?), allowed: schema,"),
    ("model: m:f", "model: unknown key (did you mean 'model', a key of each DNN in dnns or sweeps?)"),
    ("gpus: 4", "gpus: unknown key (did you mean 'slots.per_node'?), allowed: schema,"),
    (
        "schedule: {max_gpus_per_dnn: 2}",
        "schedule.max_gpus_per_dnn: unknown key (did you mean 'max_slots_per_dnn'?)",
    ),
    (
        "schedule: {profiling: {max_gpus: 2}}",
        "schedule.profiling.max_gpus: unknown key (did you mean 'max_slots'?)",
    ),
    (
        "balance: {max_samples_per_gpu: 4}",
        "balance.max_samples_per_gpu: unknown key (did you mean 'max_samples_per_slot'?)",
    ),
    (
        "balance: {max_work_per_gpu: 4}",
        "balance.max_work_per_gpu: unknown key (did you mean 'max_work_per_slot'?)",
    ),
    ("schedul: {}", "schedul: unknown key (did you mean 'schedule'?), allowed: schema, kind, name,"),
    (
        "schedule: 3",
        "schedule: got 3, allowed: a mapping with the keys paradigm, delta, alpha, max_slots_per",
    ),
    (
        "schedule: {delta: 15 percent}",
        "schedule.delta: got '15 percent', allowed: auto, samples/s, 0 or more,",
    ),
    (
        "schedule: {paradigm: globl}",
        "schedule.paradigm: got 'globl', allowed: auto, global, local, homogeneous, elastic, "
        "independent (did you mean 'global'?)",
    ),
    ("schedule: {profiling: {max_batches: 4}}", "schedule.profiling.timed_batches: got 20, allowed: at most"),
    ("slots: {per_node: many}", "slots.per_node: got 'many', allowed: auto or a whole number, 1 or more"),
    ("slots: {per_node: 0}", "slots.per_node: got 0, allowed: auto or a whole number, 1 or more"),
    (
        "data: {dataset: digits}",
        "data.dataset: got 'digits', allowed: an import path package.module:callable",
    ),
    (
        "data: {validation_fraction: 1}",
        "data.validation_fraction: got 1, allowed: 0 <= validation_fraction < 1",
    ),
    ("backend: {rates: {a: {2: 5}}}", "backend.rates.a: got {2: 5}, allowed: {dnn name:"),
    ("backend: {rates: {a: {1: 0}}}", "backend.rates.a.1: got 0, allowed: {dnn name:"),
    ("backend: {rates: {c: {1: 5}}}", "backend.rates.c: no DNN of that name, allowed: a, b"),
    ("backend: {name: emulated}", "backend.name: no rates for a, b; the emulated backend needs"),
    ("balance: {policy: fixed}", "balance.policy: got 'fixed' without weights; give balance.shares, or"),
    ("balance: {guard: false}", "balance.guard: this key is gone; leave it out, the guard of"),
    (
        "balance: fitted",
        "balance: got 'fitted', allowed: a mapping with the keys policy, shares, predictor, first_fit, "
        "refit_every, max_samples_per_slot and 5 more (did you mean '{policy: fitted}'?)",
    ),
    (
        "backend: emulatd",
        "backend: got 'emulatd', allowed: a mapping with the keys name, collective, precision, rates, "
        "workers (did you mean '{name: emulated}'?)",
    ),
    ("balance: 3", "balance: got 3, allowed: a mapping with the keys policy, "),
    ("balance: {shares: [1, 0]}", "balance.shares.1: got 0 in the list, allowed: a list of numbers above 0"),
    ("data: {access: parted}", "data.access: got 'parted', allowed: shared, partitioned"),
    ("data: {partition: classes}", "data.partition: got 'classes', allowed: random, contiguous, by_class"),
    ("data: {max_traversal_gap: 0}", "data.max_traversal_gap: got 0, allowed: null or a number above 0"),
    (
        "balance: {samples: chronica}",
        "balance.samples: got 'chronica', allowed: within-batch or in-order; or",
    ),
    ("data: {sampling: even}", "data.sampling: got 'even', allowed: random, balanced"),
    (
        "data: {access: partitioned, sampling: balanced}",
        "data.sampling: got 'balanced', allowed: random with data.access 'partitioned'; use 'shared'",
    ),
    ("data: {access: partitioned}", "data.access: got 'partitioned' for 2 DNNs, allowed: for a single DNN"),
    ("output: {dir: ''}", "output.dir: got '', allowed: a path"),
    ("name: a/b", "name: got 'a/b', allowed: a directory name of"),
    ("stall_timeout_s: 0", "stall_timeout_s: got 0, allowed: seconds, 1 or more"),
    ("checkpoint: {interval_s: -1}", "checkpoint.interval_s: got -1, allowed: seconds, 0 or more"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_value_is_reported_with_line_key_given_and_allowed(
    make_file: MakeFile, line: str, message: str
) -> None:
    text = GOOD.replace("name: demo\n", "", 1) if line.startswith("name:") else GOOD
    number = len(text.splitlines()) + 1
    found = problems_of(make_file(text + line + "\n"))
    assert any(problem.startswith(f"run.yaml:{number}: {message}") for problem in found), found


def test_classes_are_balanced_in_one_way_only(make_file: MakeFile) -> None:
    path = make_file(GOOD + "data: {sampling: balanced}\n")
    (problem,) = problems_of(path, "defaults.class_weights=balanced")
    assert "class_weights=balanced: got 'balanced' with data.sampling 'balanced', so rare classes" in problem
    load_config(path, ["defaults.class_weights={0: 2.0}"])
    load_config(path, ["data.sampling=random", "defaults.class_weights=balanced"])


HUGE = "9" * 400
BEYOND = [
    (
        "dataplane.ring_bytes",
        HUGE,
        "bytes as a whole number above 0, or text such as 256MiB, at most 1125899906",
    ),
    ("dataplane.ring_bytes", f"{HUGE}GiB", "bytes as a whole number above 0, or text such as 256MiB"),
    ("dataplane.block_samples", str(10**30), "a whole number, 1 or more, at most 1000000"),
    (
        "schedule.max_slots_per_dnn",
        str(10**30),
        "auto, null or a whole number, 1 or more, at most 1000000000",
    ),
    ("walltime", f"{HUGE}:00:00", "null, seconds above 0, or 'HH:MM:SS'"),
    ("schedule.delta", f"{HUGE}%", "auto, samples/s, 0 or more, or text such as '15%'"),
    (
        "preprocessing",
        f"[{{resize: {{height: {HUGE}, width: 1}}}}]",
        "a whole number of pixels, 1 or more, at",
    ),
    ("preprocessing", "[{normalize: {std: 1e300}}]", "a number, or a list with a number per channel"),
    ("balance.shares", "[1e300]", "a list of numbers above 0 such as '[2, 1, 1]', at most 1000000000"),
    (
        "backend.rates",
        "{a: {1: 1e300}}",
        "{dnn name: {number of slots: samples/s above 0}}, with the rate on 1 sl",
    ),
]


@pytest.mark.parametrize(("key", "value", "allowed"), BEYOND, ids=[key for key, _, _ in BEYOND])
def test_a_number_beyond_all_measure_is_refused(
    make_file: MakeFile, key: str, value: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(make_file(GOOD), [f"{key}={value}"])
    (problem,) = caught.value.problems
    assert f", allowed: {allowed}" in problem
    assert len(problem) < 600


WRONG_DNN = [
    ("batch_size: 0", "dnns.2.batch_size: got 0, allowed: a whole number, 1 or more"),
    ("optimizer: {name: sgd}", "dnns.2.optimizer: missing key 'learning_rate', allowed: a number above 0"),
    ("optimizer: {name: sdg, learning_rate: 1}", "dnns.2.optimizer.name: got 'sdg', allowed: sgd, adam"),
    (
        "optimizer: {name: adam, learning_rate: 1, momentum: 0.5}",
        "dnns.2.optimizer.momentum: got 0.5, allowed:",
    ),
    (
        "optimizer: {name: sgd, learning_rate: 1, nesterov: true}",
        "dnns.2.optimizer.nesterov: got true, allowed:",
    ),
    (
        "stop: {target: 95}",
        "dnns.2.stop.target: got 95.0, allowed: 0 < target <= 1 (val_accuracy is a share)",
    ),
    ("stop: {mode: min}", "dnns.2.stop.mode: got 'min', allowed: auto or max with monitor val_accuracy"),
    ("balance: fixed", "dnns.2.balance: got 'fixed' without weights; give dnns.2.shares, or balance.shares"),
    ("args: [1]", "dnns.2.args: got [1], allowed: a mapping of argument names to values"),
    ("args: {1: 2}", "dnns.2.args.1: got the key 1, allowed: text; write '1' with the quotes"),
    ("args: {null: 2}", "dnns.2.args.None: got the key nothing (null), allowed: text; write 'null' with"),
    ("args: {x: {a: 1, 1: 2}}", "dnns.2.args.x.1: got the key 1, allowed: text; write '1' with the quotes"),
    ("args: {x: [{y: {true: 2}}]}", "dnns.2.args.x.0.y.True: got the key true, allowed: text; write 'true'"),
    ("args: {x: {2.5: 1}}", "dnns.2.args.x.2.5: got the key 2.5, allowed: text; write '2.5' with the quotes"),
    ("loss: {name: huber, args: {1: 2}}", "dnns.2.loss.args.1: got the key 1, allowed: text; write '1' with"),
    (
        "metrics: [{name: accuracy, args: {1: 2}}]",
        "dnns.2.metrics.0.args.1: got the key 1, allowed: text; write",
    ),
    (
        "optimizer: {name: adam, learning_rate: 1, args: {1: 2}}",
        "dnns.2.optimizer.args.1: got the key 1, allowed: text; write",
    ),
    ("name: a", "dnns.2.name: got 'a' for more than one DNN (first at run.yaml:11)"),
    (
        "name: B",
        "dnns.2.name: got 'B' beside 'b' (first at run.yaml:15), allowed: a different name for each, not",
    ),
    (
        f"batch_size: {10**30}",
        "dnns.2.batch_size: got 1000000000000000000000000000000, allowed: a whole number",
    ),
    ("name: ../up", "dnns.2.name: got '../up', allowed: a directory name of letters,"),
]


@pytest.mark.parametrize(("line", "message"), WRONG_DNN, ids=[line for line, _ in WRONG_DNN])
def test_a_wrong_dnn_is_reported(make_file: MakeFile, line: str, message: str) -> None:
    name = "" if line.startswith("name") else "name: c\n    "
    dnn = f"  - {name}model: m:f\n    {line}\n"
    found = problems_of(make_file(GOOD.replace("walltime:", dnn + "walltime:")))
    assert any(f": {message}" in problem for problem in found), found
    assert all(problem.startswith("run.yaml:") for problem in found)


def test_keys_in_args_that_are_not_text_are_reported_at_any_depth(make_file: MakeFile) -> None:
    sweep = (
        "sweeps:\n  - name: s{batch_size}\n    model: m:f\n    args: {x: {3: 1}}\n"
        "    grid: {batch_size: [8, 9]}\n"
    )
    data = "data:\n  args:\n    deep:\n      4: 1\n"
    override = "dnns.a.args={x: {a: 1, 5: 2}}"
    shown = "allowed: text; write '{}' with the quotes"
    assert problems_of(make_file(GOOD + data + sweep), override) == [
        f"run.yaml:24: data.args.deep.4: got the key 4, {shown.format(4)}",
        f"run.yaml:28: sweeps.0.args.x.3: got the key 3, {shown.format(3)}",
        f"--set {override}: dnns.a.args.x.5: got the key 5, {shown.format(5)}",
    ]


def test_fixed_without_weights_in_the_defaults_is_reported_once(make_file: MakeFile) -> None:
    text = GOOD.replace("defaults:\n", "defaults:\n  balance: fixed\n")
    (problem,) = problems_of(make_file(text))
    shown = "got 'fixed' without weights; give dnns.N.shares, or balance.shares for all DNNs, for"
    assert problem.startswith(f"run.yaml:3: defaults.balance: {shown}")
    assert load_config(make_file(text + "balance: {shares: [2, 1]}\n")).dnns[0].balance == "fixed"


def test_a_dnn_may_have_its_own_seed_or_that_of_the_defaults(make_file: MakeFile) -> None:
    assert [dnn.seed for dnn in load_config(make_file(GOOD)).dnns] == [None, None]
    config = load_config(make_file(GOOD), ["defaults.seed=3", "dnns.b.seed=0"])
    assert [dnn.seed for dnn in config.dnns] == [3, 0]
    for wrong in ("-1", "4294967296", "1.5", "true"):
        (problem,) = problems_of(make_file(GOOD), f"dnns.b.seed={wrong}")
        assert problem.endswith("allowed: null or a whole number from 0 to 2**32 - 1")


def test_a_stop_rule_needs_a_metric_that_the_run_has(make_file: MakeFile) -> None:
    without = "data.validation_fraction=0"
    (problem,) = problems_of(make_file(GOOD), without)
    assert "stop: patience with monitor val_ and the first metric by default" in problem
    assert "data.validation_fraction is 0; allowed: monitor: accuracy, loss or another" in problem
    (problem,) = problems_of(make_file(GOOD), without, "defaults.stop.monitor=val_loss")
    assert "stop.monitor=val_loss: patience with monitor 'val_loss'" in problem
    for settings in (("defaults.stop.monitor=loss",), ("defaults.stop.patience=null",)):
        load_config(make_file(GOOD), [without, *settings])
    load_config(make_file(GOOD), ["data.validation_fraction=0.1"])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("defaults.stop.monitor=val_loss", "max_epochs with monitor 'val_loss'"),
        ("defaults.optimizer.schedule=plateau", "optimizer.schedule plateau with monitor val_ and the first"),
        ("checkpoint.keep=best", "checkpoint.keep best with monitor val_ and the first metric by default"),
        ("prune.rule=median", "prune.rule median with monitor val_ and the first metric by default"),
    ],
)
def test_nothing_follows_a_metric_of_validation_samples_where_there_are_none(
    make_file: MakeFile, setting: str, told: str
) -> None:
    settings = ["data.validation_fraction=0", "defaults.stop.patience=null", setting]
    for problem in problems_of(make_file(GOOD), *settings):
        assert told in problem
        assert "but data.validation_fraction is 0; allowed: monitor: accuracy, loss or another" in problem
    load_config(make_file(GOOD), [*settings, "data.validation_fraction=0.1"])
    load_config(make_file(GOOD), [*settings, "defaults.stop.monitor=loss"])


@pytest.mark.parametrize("more", [[], ["defaults.metrics=[mean_squared_error]", "defaults.loss=mse"]])
def test_a_resolved_file_without_validation_samples_is_valid_again(
    make_file: MakeFile, more: list[str]
) -> None:
    """It names the metric that nothing follows."""
    config = load_config(
        make_file(GOOD), ["data.validation_fraction=0", "defaults.stop={max_epochs: 2}", *more]
    )
    assert load_config(make_file(resolved_yaml(config))) == config


def test_a_dnn_that_is_not_pruned_needs_no_validation_samples_for_it(make_file: MakeFile) -> None:
    settings = [
        "data.validation_fraction=0",
        "prune.rule=median",
        "dnns.b.stop.monitor=loss",
        "prune.dnns=[b]",
    ]
    load_config(make_file(GOOD), settings)
    problems = problems_of(make_file(GOOD), *settings, "prune.dnns=[a]")
    assert "prune.rule median with monitor val_" in "".join(problems)


@pytest.mark.parametrize(
    "settings",
    [
        ("balance={policy: fixed, shares: [3, 2, 1]}",),
        ("dnns.a.balance=fixed", "dnns.a.shares=[3, 2, 1]"),
        ("defaults.balance=fixed", "balance.shares=[3, 2, 1]"),
    ],
)
def test_more_weights_than_a_dnn_may_have_slots_are_refused(
    make_file: MakeFile, settings: tuple[str, ...]
) -> None:
    (problem,) = problems_of(make_file(GOOD), *settings, "schedule.max_slots_per_dnn=2")
    assert problem.endswith("got 3 weights, allowed: at most 2 with schedule.max_slots_per_dnn 2")
    load_config(make_file(GOOD), [*settings, "schedule.max_slots_per_dnn=3"])


def test_more_weights_than_slots_are_refused_once_the_slots_are_known(make_file: MakeFile) -> None:
    config = load_config(
        make_file(GOOD), ["balance={policy: fixed, shares: [3, 2, 1]}", "dnns.b.shares=[1, 2]"]
    )
    check_shares(config, 3)
    with pytest.raises(ConfigError) as caught:
        check_shares(config, 1)
    advice = "one for each slot; remove some weights, or ask for more slots"
    assert caught.value.problems == (
        f"balance.shares: got 3 weights, allowed: at most 1, {advice}",
        f"dnns.b.shares: got 2 weights, allowed: at most 1, {advice}",
    )
    others = load_config(make_file(GOOD), ["balance={policy: even, shares: [3, 2, 1]}"])
    check_shares(others, 1)


PARTED = GOOD.replace("preprocessing:", "data: {access: partitioned}\npreprocessing:").replace(
    """  - name: b
    model: hpcbal.models:softmax
    optimizer: {name: adam, learning_rate: 0.3}
    batch_size: 8
""",
    "",
)
ALLOWED = "allowed: at least %d with data.access 'partitioned': every slot that the DNN may have"


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        (("slots.per_node=4",), 4),
        (("slots.per_node=4", "schedule.max_slots_per_dnn=3"), 3),
        (("slots.per_node=3", "schedule.max_slots_per_dnn=8"), 3),
        (("slots.per_node=4", "schedule.max_slots_per_dnn=2"), 2),
        (("slots.per_node=auto",), 1),
        (("schedule.max_slots_per_dnn=8",), 1),
    ],
)
def test_partitioned_data_needs_a_sample_of_each_step_for_every_slot(
    make_file: MakeFile, settings: tuple[str, ...], least: int
) -> None:
    """A file describes at least one node."""
    path = make_file(PARTED.replace("batch_size: 32", "batch_size: 2"))
    if least <= 2:
        assert load_config(path, settings).dnns[0].batch_size == 2
        return
    (problem,) = problems_of(path, *settings)
    assert problem.startswith(f"run.yaml:4: defaults.batch_size: got 2, {ALLOWED % least}")
    assert problem.endswith("or set schedule.max_slots_per_dnn to 2")
    load_config(path, [*settings, f"dnns.a.batch_size={least}"])
    load_config(path, [*settings, "data.access=shared"])


def test_samples_of_a_step_are_counted_against_all_slots_once_they_are_known(make_file: MakeFile) -> None:
    path = make_file(PARTED)
    config = load_config(path, ["dnns.a.batch_size=6"])
    check_parts(config, 6)
    with pytest.raises(ConfigError) as caught:
        check_parts(config, 8)
    (shown,) = caught.value.problems
    assert shown.startswith(f"dnns.a.batch_size: got 6, {ALLOWED % 8}")
    check_parts(load_config(path, ["dnns.a.batch_size=6", "schedule.max_slots_per_dnn=6"]), 8)
    check_parts(load_config(path, ["dnns.a.batch_size=6", "data.access=shared"]), 8)


def test_training_samples_are_counted_against_the_slots_that_a_dnn_may_have(make_file: MakeFile) -> None:
    path = make_file(PARTED)
    sizes = ["dnns.a.batch_size=8"]
    config = load_config(path, sizes)
    check_parts(config, 4, 4)
    with pytest.raises(ConfigError) as caught:
        check_parts(config, 4, 3)
    (shown,) = caught.value.problems
    assert shown.startswith("data.dataset: got 3 training samples, allowed: at least 4 with data.access")
    assert shown.endswith("or set schedule.max_slots_per_dnn to 3")
    check_parts(load_config(path, [*sizes, "schedule.max_slots_per_dnn=3"]), 4, 3)
    check_parts(load_config(path, [*sizes, "data.access=shared"]), 4, 3)


def test_all_problems_of_a_file_come_at_once_in_order_of_lines(make_file: MakeFile) -> None:
    text = GOOD.replace("batch_size: 32", "batch_size: -1").replace("height: 8", "heigth: 8")
    found = problems_of(make_file(text + "schedule: {alpha: 7, delta: x}\nbackend: {name: emulated}\n"))
    keys = [": ".join(problem.split(": ")[:2]) for problem in found]
    assert keys == [
        "run.yaml:4: defaults.batch_size",
        "run.yaml:7: preprocessing.0.resize",
        "run.yaml:7: preprocessing.0.resize.heigth",
        "run.yaml:17: dnns.1.optimizer.name",
        "run.yaml:21: schedule.delta",
        "run.yaml:21: schedule.alpha",
        "run.yaml:22: backend.name",
    ]


def test_unused_defaults_are_checked_too(make_file: MakeFile) -> None:
    text = """\
defaults: {optimizer: {learning_rate: -1}, stop: {patiense: 1}}
dnns:
  - {name: a, model: m:f, optimizer: {name: sgd, learning_rate: 1}, batch_size: 1, stop: {max_epochs: 2}}
"""
    found = problems_of(make_file(text))
    assert "run.yaml:1: defaults.optimizer.learning_rate: got -1, allowed: a number above 0" in found
    assert any("defaults.stop.patiense: unknown key (did you mean 'patience'?)" in line for line in found)


def test_a_file_without_dnns_says_so(make_file: MakeFile) -> None:
    assert problems_of(make_file("seed: 1\n")) == [
        "run.yaml:1: missing key 'dnns', allowed: a list of at least one DNN"
    ]
    assert problems_of(make_file("dnns:\n")) == [
        "run.yaml:1: dnns: got [], allowed: a list of at least one DNN"
    ]
    assert problems_of(make_file("dnns: 3\n")) == ["run.yaml:1: dnns: got 3, allowed: a list of DNNs"]


def test_an_empty_section_means_its_defaults(make_file: MakeFile) -> None:
    assert load_config(make_file(GOOD + "schedule:\nslots:\n")).schedule.alpha == "auto"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("resize: {height: 8}", "preprocessing.0.resize: missing key 'width'"),
        (
            "resze: {height: 8}",
            "preprocessing.0.resze: unknown key (did you mean 'resize'?), allowed: decode,",
        ),
        ("{decode: {}, random_flip: {}}", "preprocessing.0: got decode, random_flip, allowed: exactly one"),
        ("{}", "preprocessing.0: got none, allowed: exactly one operation per entry"),
        ("3", "preprocessing.0: got 3, allowed: a list of operations such as"),
        ("normalize: {std: 0}", "preprocessing.0.normalize.std: got 0.0, allowed:"),
        (
            "normalize: {mean: [1, 2], std: [1, 2, 3]}",
            "preprocessing.0.normalize.std: got 3 numbers but mean has 2",
        ),
        (
            "random_rotation: {degrees: 200}",
            "preprocessing.0.random_rotation.degrees: got 200, allowed: 0 < degrees",
        ),
    ],
)
def test_a_wrong_operation_is_reported(make_file: MakeFile, item: str, message: str) -> None:
    text = GOOD.replace("  - resize: {height: 8, width: 6}", f"  - {item}")
    found = problems_of(make_file(text))
    assert any(problem.startswith(f"run.yaml:7: {message}") for problem in found), found


def test_a_configuration_can_be_built_without_a_file() -> None:
    operation = OperationConfig("resize", {"height": 2, "width": 3})
    built = EnsembleConfig.model_validate(
        {
            "preprocessing": [operation],
            "dnns": [
                {
                    "name": "a",
                    "model": "m:f",
                    "optimizer": {"name": "sgd", "learning_rate": 0.1},
                    "batch_size": 4,
                    "stop": {"max_epochs": 2},
                }
            ],
        }
    )
    assert built.preprocessing == (operation,)
    assert built.backend.effective_collective == "auto"


def test_of_very_many_problems_the_first_are_shown_in_the_order_of_the_file(make_file: MakeFile) -> None:
    unknown = "".join(f"key{i}: {i}\n" for i in range(MOST_PROBLEMS + 50))
    path = make_file(f"{GOOD}seed: -1\n{unknown}")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    first_line = GOOD.count("\n") + 1
    places = [line.removeprefix(f"{path}:").split(":")[0] for line in caught.value.problems]
    assert places == [str(first_line + i) for i in range(MOST_PROBLEMS)]
    assert caught.value.has_more
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.problems, again.has_more) == (caught.value.problems, True)


def test_an_error_that_many_dnns_inherit_does_not_hide_the_others(make_file: MakeFile) -> None:
    swept = (
        "defaults:\n"
        "  optimizer: {name: sgdd, learning_rate: 0.1}\n"
        "  stop: {max_epochs: 1}\n"
        "sweeps:\n"
        "  - {name: 'a{batch_size}', model: 'hpcbal.models:softmax', grid: {batch_size: ["
    )
    sizes = ", ".join(str(size) for size in range(1, 3 * MOST_PROBLEMS))
    last = "  - {name: b, model: 'hpcbal.models:softmax', batch_size: none, zip: {seeed: [1]}}\n"
    found = problems_of(make_file(f"{swept}{sizes}]}}}}\n{last}"))
    assert [line.split(": ")[:2] for line in found] == [
        ["run.yaml:2", "defaults.optimizer.name"],
        ["run.yaml:6", "sweeps.1.zip.seeed"],
        ["run.yaml:6", "sweeps.1.batch_size"],
    ]
    assert "did you mean 'sgd'?" in found[0]


def test_of_very_many_warnings_the_first_are_shown(make_file: MakeFile) -> None:
    dnns = "".join(
        f"  - {{name: d{i}, model: 'hpcbal.models:softmax', stop: {{max_epochs: 2, min_delta: 0.1}}}}\n"
        for i in range(MOST_PROBLEMS + 7)
    )
    defaults = "defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 1}\n"
    warnings: list[str] = []
    load_config(make_file(f"{defaults}dnns:\n{dnns}"), warn=warnings.append)
    assert len(warnings) == MOST_PROBLEMS + 1
    assert warnings[-1].endswith("run.yaml: 7 more keys have no effect, or may not fit")
