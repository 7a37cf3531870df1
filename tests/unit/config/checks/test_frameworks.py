"""The framework of a DNN follows from the source of its callable, unless the file says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import DnnConfig, load_config
from hpcbal.config.checks import frameworks
from hpcbal.config.checks.frameworks import framework_of
from hpcbal.config.schema.ensemble import BackendConfig
from hpcbal.config.source.given import GivenConfig

BOTH = "import torch.nn.functional as F\nfrom torch import nn\nfrom keras import layers as L\n\n"
SOURCES = {
    "in_function": "def make(shape, classes):\n    import torch\n    return torch.nn.Linear(1, 1)\n",
    "in_module": "from torch import nn\n\ndef make(shape, classes):\n    return nn.Linear(1, 1)\n",
    "annotated": "import torch\nimport keras\n\ndef make(shape, classes) -> torch.nn.Module: ...\n",
    "of_keras": "import keras\n\ndef make(shape, classes):\n    return keras.Sequential()\n",
    "beside": "import torch\nfrom .keras import blocks\n\ndef make(shape, classes):\n    return blocks()\n",
    "a_class": "import torch\n\nclass make(torch.nn.Module): ...\n",
    "elsewhere": "from in_function import make\n",
    "silent": "from somewhere import Net\n\ndef make(shape, classes):\n    return Net()\n",
    "by_alias": BOTH + "def make(shape, classes):\n    return nn.Linear(1, 1)\n",
    "by_class": BOTH + "def make(shape, classes):\n    return part()\n\ndef part():\n    return Net()\n\n"
    "class Net(nn.Module):\n    other: make\n",
    "by_keras": BOTH + "def make(shape, classes):\n    return L.Dense(1)\n",
    "by_both": BOTH + "def make(shape, classes):\n    return F.relu(L.Dense(1))\n",
    "both": "import torch\nimport keras\n\ndef make(shape, classes):\n    return build()\n",
}


def dnn(model: str, **given: str) -> DnnConfig:
    return DnnConfig.model_validate(
        {
            "name": "a",
            "model": model,
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "batch_size": 4,
            "stop": {"max_epochs": 1},
            **given,
        }
    )


@pytest.fixture(autouse=True)
def _sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SOURCES.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("module", "framework"),
    [
        ("in_function", "torch"),
        ("in_module", "torch"),
        ("annotated", "torch"),
        ("of_keras", "tensorflow"),
        ("beside", "torch"),
        ("a_class", "torch"),
        ("elsewhere", "torch"),
        ("silent", "tensorflow"),
        ("by_alias", "torch"),
        ("by_class", "torch"),
        ("by_keras", "tensorflow"),
        ("by_both", "tensorflow"),
        ("both", "tensorflow"),
    ],
)
def test_of_a_source(module: str, framework: str) -> None:
    assert framework_of(dnn(f"{module}:make"), BackendConfig()) == framework


def test_models_of_hpcbal() -> None:
    for model in ("resnet", "densenet", "mlp", "recurrent"):
        assert framework_of(dnn(f"hpcbal.models:{model}"), BackendConfig()) == "tensorflow"
        assert framework_of(dnn(f"hpcbal.models.torch:{model}"), BackendConfig()) == "torch"


def test_the_file_wins() -> None:
    assert framework_of(dnn("silent:make", framework="torch"), BackendConfig()) == "torch"
    assert framework_of(dnn("of_keras:make", framework="torch"), BackendConfig(name="tensorflow")) == "torch"
    assert framework_of(dnn("silent:make"), BackendConfig(name="torch")) == "torch"


DEFAULTS = {
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "batch_size": 4,
    "stop": {"max_epochs": 1},
}


@pytest.mark.parametrize(
    ("module", "given", "of_all", "line"),
    [
        (
            "in_module",
            "tensorflow",
            "auto",
            "config: dnns.0.framework: got tensorflow, but in_module:make names PyTorch alone; if its "
            "model is of PyTorch, set framework: torch, or the run is refused",
        ),
        (
            "of_keras",
            None,
            "torch",
            "config: backend.name: got torch, but of_keras:make names TensorFlow alone; if its model is "
            "of TensorFlow, set the DNN's framework: tensorflow, or the run is refused",
        ),
        ("in_module", "torch", "auto", None),
        ("in_module", "torch", "tensorflow", None),
        ("by_both", "torch", "auto", None),
        ("silent", "torch", "auto", None),
        ("beside", "tensorflow", "auto", None),
    ],
)
def test_a_framework_that_the_source_contradicts_is_told_before_a_run(
    module: str, given: str | None, of_all: str, line: str | None
) -> None:
    """Only warned of: the function may get its model from elsewhere."""
    values = {
        "defaults": DEFAULTS,
        "dnns": [{"name": "a", "model": f"{module}:make", "framework": given}],
        "backend": {"name": of_all},
    }
    lines = list[str]()
    load_config(GivenConfig(values), warn=lines.append, beforehand=True)
    assert [each for each in lines if "framework" in each] == ([] if line is None else [line])


def test_a_framework_that_is_missing_here_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only warned of: the file may be checked on another machine."""
    values = {
        "defaults": DEFAULTS,
        "dnns": [
            {"name": name, "model": f"{model}:make"}
            for name, model in (("a", "in_module"), ("b", "of_keras"), ("c", "of_keras"))
        ],
    }

    def warned(**more: object) -> list[str]:
        lines = list[str]()
        load_config(GivenConfig({**values, **more}), warn=lines.append, beforehand=True)
        return [line for line in lines if "installed" in line]

    assert warned() == []
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None if name == "tensorflow" else object())
    assert warned() == [
        "config: dnns.1.model: needs TensorFlow, which is not installed on this machine; for a run here: pip "
        "install 'hpcbal[tensorflow]'"
    ]
    assert warned(backend={"name": "emulated", "rates": {name: {1: 1.0} for name in "abc"}}) == []
