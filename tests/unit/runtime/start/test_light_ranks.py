"""Ranks that only talk, or preprocess, or train emulated models, load no deep-learning library."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from hpcbal.config import EnsembleConfig
from hpcbal.runtime.start.trainer import TrainerRecipe

PROGRAM = """
import sys
from pathlib import Path
import hpcbal.runtime.main
from hpcbal.config import load_config
from hpcbal.data.source import open_source
from hpcbal.runtime.start.recipe import recipe_of
config = load_config(Path(sys.argv[1]))
for role, no_more in (("preprocessor", "control"), ("trainer", "simulator"), ("scheduler", "report.page")):
    recipe = recipe_of(role)
    if role != "trainer":
        recipe.load_libraries(config)
    assert f"hpcbal.{no_more}" not in sys.modules, (role, no_more)
open_source(config)
import hpcbal.models
import hpcbal.training.emulated_backend
print(*sorted({"tensorflow", "keras", "horovod"} & sys.modules.keys()))
"""


def test_only_trainers_of_keras_models_import_tensorflow(request: pytest.FixtureRequest) -> None:
    """Everything that a rank of any role imports, the dataset, and the emulated backend with its models.

    Trainers of Keras models load the rest meanwhile.
    """
    config = request.config.rootpath / "configs" / "quickstart.yaml"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(config)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_trainers_load_tensorflow_while_others_open_the_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failed import is reported by the stage that needs it."""
    asked: list[str] = []

    def refuse(name: str) -> None:
        asked.append(name)
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    dnn = SimpleNamespace(name="a", model="hpcbal.models:mlp", framework=None)
    for backend in ("tensorflow", "torch", "emulated"):
        is_emulated = backend == "emulated"
        config = SimpleNamespace(
            backend=SimpleNamespace(name=backend, is_emulated=is_emulated), dnns=[dnn], searches=()
        )
        TrainerRecipe.load_libraries(cast("EnsembleConfig", config))
    assert asked == ["hpcbal.training.keras.tensorflow_backend", "hpcbal.training.torch.backend"]
