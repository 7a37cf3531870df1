"""Operations by import path in `preprocessing`: the file is checked without running them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbal.config import load_config, resolved_yaml
from hpcbal.config.checks.sections import ring_problems
from hpcbal.config.schema.operations import OPERATIONS
from hpcbal.config.source.yaml_source import parse_yaml
from hpcbal.errors import ConfigError
from hpcbal.kinds import KINDS

MODULE = """\
raise RuntimeError("validate must not run this")

def shifted(sample, rng, most: int = 2):
    return sample

class Twice:
    def __init__(self, axis=0):
        self.axis = axis

def lonely(x):
    return x
"""
REST = """
dnns:
  - name: a
    model: hpcbal.models:softmax
    optimizer: {name: sgd, learning_rate: 0.1}
    batch_size: 8
    stop: {max_epochs: 1}
"""


def write(folder: Path, *items: str) -> Path:
    (folder / "static_operations.py").write_text(MODULE)
    path = folder / "run.yaml"
    steps = "\n".join(f"  - {item}" for item in items)
    path.write_text(f"schema: 1\npreprocessing:\n{steps}{REST}")
    return path


def test_functions_and_classes_are_found_with_their_arguments(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "static_operations:shifted: {most: 3}",
        "static_operations:shifted",
        "random_flip",
        "static_operations:Twice:",
    )
    config = load_config(path, check_imports=True)
    assert [(step.name, dict(step.args)) for step in config.preprocessing] == [
        ("static_operations:shifted", {"most": 3}),
        ("static_operations:shifted", {}),
        ("random_flip", {"horizontal": True, "vertical": False}),
        ("static_operations:Twice", {}),
    ]
    path.write_text(resolved_yaml(config))
    assert load_config(path).preprocessing == config.preprocessing


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (
            "static_operations:shifted: {wost: 3}",
            ":shifted.wost: .* has no argument 'wost' .did you mean 'most'",
        ),
        ("static_operations:shifted: {most: wide}", r":shifted.most: got 'wide', allowed by .*whole number"),
        ("static_operations:shifted: {rng: 3}", r":shifted.rng: .* has no argument 'rng', allowed: most"),
        ("static_operations:Twice: {axes: 1}", ":Twice.axes: .* has no argument 'axes'"),
        ("static_operations:lonely", r"is lonely\(x\), allowed: a callable that takes sample and rng first"),
        ("os:_exit", r"is _exit\(status\), allowed: a callable that takes sample and rng first"),
        ("static_operations:shifte", "defines no 'shifte' .did you mean 'shifted'"),
        ("nowhere.ops:shifted: {}", "no module 'nowhere'"),
        ("static_operations:shifted: 3", "got 3 for static_operations:shifted, allowed: a mapping of arg"),
        ("static_operations:shifted: {3: 4}", "got the key 3, allowed: text; write '3' with the quotes"),
        ("{static_operations:shifted: {}, decode: {}}", "allowed: exactly one operation per entry"),
        ("static_operations.shifted: {}", "unknown key, allowed: decode, .*, or an import path package.mod"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(tmp_path: Path, item: str, problem: str) -> None:
    path = write(tmp_path, item)
    with pytest.raises(ConfigError) as caught:
        load_config(path, check_imports=True)
    assert re.search(rf"^{path}:3: preprocessing\.0.*{problem}", str(caught.value), re.MULTILINE)


def test_an_operation_of_the_user_may_shrink_samples(tmp_path: Path) -> None:
    text = "dataplane: {ring_bytes: 1KiB}\npreprocessing:\n- resize: {height: 40, width: 20}\n"
    assert ring_problems(parse_yaml(text, "f"))
    assert not ring_problems(parse_yaml(text + "- own:shrunk: {}\n", "f"))
    assert ring_problems(parse_yaml(text + "- own:shrunk: {}\n- resize: {height: 40, width: 20}\n", "f"))


def test_the_json_schema_allows_import_paths() -> None:
    (pattern,) = KINDS["ensemble"].file.json_schema()["$defs"]["OperationItem"]["patternProperties"]
    assert re.search(pattern, "my_package.ops:Blur.make")
    assert not any(re.search(pattern, name) for name in OPERATIONS)


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        (["mixup", "cutmix", "normalize"], ""),
        (["normalize", "cutmix: {p: 0.5}", "mixup", "normalize", "normalize"], ""),
        (
            ["mixup", "random_flip"],
            "preprocessing.1: random_flip comes after mixup, allowed there: normalize,",
        ),
        (
            ["mixup", "static_operations:shifted"],
            "preprocessing.1: static_operations:shifted comes after mix",
        ),
        (
            ["mixup", "cutmix", "mixup"],
            "preprocessing.2: mixup comes after cutmix, allowed there: normalize, ",
        ),
        (
            ["mixup", "normalize", "cutmix"],
            "preprocessing.2: cutmix comes after mixup, .* side by side; chan",
        ),
        (["mixup: {alpha: 0}"], "preprocessing.0.mixup.alpha: got 0, allowed: a number above 0"),
    ],
)
def test_pairs_are_mixed_after_everything_but_normalize(
    tmp_path: Path, items: list[str], problem: str
) -> None:
    path = write(tmp_path, *items)
    if not problem:
        assert len(load_config(path).preprocessing) == len(items)
        return
    with pytest.raises(ConfigError, match=problem):
        load_config(path)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            "loss: sparse_categorical_crossentropy",
            "dnns.0.loss: got 'sparse_cat.*', but cutmix in",
        ),
        (
            "loss: {name: sparse_categorical_crossentropy}",
            "dnns.0.loss.name: .*; leave it out, or",
        ),
        ("metrics: [auc, sparse_categorical_accuracy]", "dnns.0.metrics.1: .*; use categorical_accuracy"),
        ("loss: categorical_crossentropy", ""),
        ("metrics: [accuracy, {name: auc}]", ""),
    ],
)
def test_mixed_samples_have_no_number_of_a_class(tmp_path: Path, keys: str, problem: str) -> None:
    path = write(tmp_path, "cutmix")
    path.write_text(path.read_text().replace("    batch_size: 8", f"    batch_size: 8\n    {keys}"))
    if not problem:
        load_config(path)
        return
    with pytest.raises(ConfigError, match=problem):
        load_config(path)
    path.write_text(path.read_text().replace("cutmix", "random_flip"))
    load_config(path)
