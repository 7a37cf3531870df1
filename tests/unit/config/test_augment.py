"""`augment` of DNNs in files: defaults, sweeps, and the same messages as for preprocessing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.errors import ConfigError

MODULE = """\
raise RuntimeError("validate must not run this")

def noisy(sample, rng, spread: float = 1.0):
    return sample
"""
DEFAULTS = """\
defaults:
  optimizer: {name: sgd, learning_rate: 0.1}
  batch_size: 8
  stop: {max_epochs: 1}
"""
TWO = """\
  augment: [random_flip]
dnns:
  - {name: a, model: hpcbal.models:softmax}
  - {name: b, model: hpcbal.models:softmax, augment: %s}
"""


def write(folder: Path, text: str, head: str = "") -> Path:
    (folder / "own_augments.py").write_text(MODULE)
    path = folder / "run.yaml"
    path.write_text(f"schema: 1\n{head}{DEFAULTS}{text}")
    return path


def problems_of(folder: Path, text: str, head: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text, head), check_imports=True)
    return [line.replace(f"{folder}/", "") for line in caught.value.problems]


def names(config) -> dict[str, list[str]]:
    return {dnn.name: [step.name for step in dnn.augment] for dnn in config.dnns}


def test_an_own_list_takes_the_place_of_the_default(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, TWO % "[cutout: {size: 2}]"))
    assert names(config) == {"a": ["random_flip"], "b": ["cutout"]}
    assert names(load_config(write(tmp_path, TWO % "[]"))) == {"a": ["random_flip"], "b": []}
    assert dict(config.dnns[0].augment[0].args) == {"horizontal": True, "vertical": False}


def test_a_sweep_of_lists_names_dnns_by_their_operations(tmp_path: Path) -> None:
    sweep = """\
sweeps:
  - name: net-{augment}
    model: hpcbal.models:softmax
    grid:
      augment:
        - []
        - [random_flip]
        - [random_flip: {vertical: true}, own_augments:noisy: {spread: 2}]
"""
    config = load_config(write(tmp_path, sweep), check_imports=True)
    assert names(config) == {
        "net-none": [],
        "net-random_flip": ["random_flip"],
        "net-random_flip-noisy": ["random_flip", "own_augments:noisy"],
    }


def test_lists_may_be_drawn_or_zipped(tmp_path: Path) -> None:
    sweep = """\
sweeps:
  - name: net-{sample}
    model: hpcbal.models:softmax
    search:
      samples: 3
      space: {augment: {choice: [[], [random_flip]]}}
  - name: zipped-{batch_size}
    model: hpcbal.models:softmax
    zip: {batch_size: [8, 16], augment: [[], [cutout: {size: 2}]]}
"""
    config = load_config(write(tmp_path, sweep))
    assert {tuple(steps) for name, steps in names(config).items() if "net" in name} <= {(), ("random_flip",)}
    assert names(config)["zipped-16"] == ["cutout"]


@pytest.mark.parametrize(
    ("operations", "wanted"),
    [
        (
            "[random_fip]",
            "run.yaml:9: dnns.1.augment.0: got 'random_fip' (did you mean 'random_flip'?), allowed in "
            "augment: resize, random_crop, ",
        ),
        (
            "[{mixap: {alpha: 1}, of: image}]",
            "run.yaml:9: dnns.1.augment.0: got 'mixap', allowed in augment: resize, ",
        ),
        (
            "[cutout: {sizee: 2}]",
            "run.yaml:9: dnns.1.augment.0.cutout.sizee: unknown key (did you mean 'size'?)",
        ),
        (
            "[cutout: {size: 0}]",
            "run.yaml:9: dnns.1.augment.0.cutout.size: got 0, allowed: a whole number of",
        ),
        ("{random_flip: {}}", "run.yaml:9: dnns.1.augment: got {'random_flip': {}}, allowed: a list of oper"),
        ("[mixup]", "run.yaml:9: dnns.1.augment.0: got mixup, allowed in augment: resize, random_crop, "),
        ("[decode: {mode: rgb}]", "run.yaml:9: dnns.1.augment.0: got decode, allowed in augment: resize, "),
        ("[own_augments:noise]", "run.yaml:9: dnns.1.augment.0: got 'own_augments:noise': "),
        (
            "[own_augments:noisy: {sprad: 1}]",
            "run.yaml:9: dnns.1.augment.0.own_augments:noisy.sprad: own_augments:noisy has no ",
        ),
        (
            "[own_augments:noisy: {spread: x}]",
            "run.yaml:9: dnns.1.augment.0.own_augments:noisy.spread: got 'x",
        ),
        ("[own_augments:noisy: {1: 1}]", "run.yaml:9: dnns.1.augment.0.own_augments:noisy.1: got the key 1"),
    ],
)
def test_mistakes_are_reported_as_in_preprocessing(tmp_path: Path, operations: str, wanted: str) -> None:
    found = problems_of(tmp_path, TWO % operations)
    assert [line for line in found if line.startswith(wanted)], found


def test_all_mistakes_are_reported_together_and_those_of_defaults_once(tmp_path: Path) -> None:
    text = TWO.replace("[random_flip]", "[normalize, own_augments:noise]") % "[cutmix, cutout]"
    found = problems_of(tmp_path, text)
    assert len([line for line in found if "got normalize, allowed in augment: " in line]) == 1
    assert len([line for line in found if "own_augments:noise" in line]) == 1
    assert [line for line in found if "got cutmix, allowed in augment: " in line]
    assert [line for line in found if "dnns.1.augment.1: missing key 'size'" in line]


def test_normalizing_on_preprocessors_is_refused_only_beside_augment(tmp_path: Path) -> None:
    head = "preprocessing: [normalize]\ndataplane: {on_device: false}\n"
    (line,) = problems_of(tmp_path, TWO % "[]", head)
    assert line.startswith(
        "run.yaml:3: dataplane.on_device: got false, allowed with augment of a DNN: true ("
    )
    plain = TWO.replace("  augment: [random_flip]\n", "") % "[]"
    load_config(write(tmp_path, plain, head))
    load_config(write(tmp_path, TWO % "[]", head.replace("normalize]", "normalize, random_flip]")))
    load_config(write(tmp_path, TWO % "[]", head.replace("false", "true")))


def test_jobs_on_parameter_servers_have_no_such_key(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(
        "kind: paramserver\napp: hpcbal.paramserver.apps:MatrixFactorization\naugment: [random_flip]\n"
    )
    with pytest.raises(ConfigError, match="augment: unknown key"):
        load_config(path)
