"""Small values that stand in for what config and data plane give to a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.data.spec import SampleSpec


@dataclass(frozen=True)
class Batch:
    ids: np.ndarray
    x: Any
    y: np.ndarray
    padding_limit: float = math.inf

    @property
    def work(self) -> float:
        return float(len(self.ids))


@dataclass(frozen=True)
class Optimizer:
    name: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
    clip_norm: float | None = None
    no_weight_decay: tuple[str, ...] = ()
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dnn:
    model: str = "hpcbal.models:softmax"
    name: str = "dnn"
    args: dict[str, Any] = field(default_factory=dict)
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int | None = None
    loss: Any = None
    metrics: Any = None
    label_smoothing: float = 0.0
    class_weights: Any = None
    freeze: tuple[str, ...] = ()
    accumulate: int = 1
    ema: float | None = None
    compile: bool = False
    loss_weights: Any = None

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.loss) if isinstance(self.loss, dict) else ()

    @property
    def has_own_loss(self) -> bool:
        return getattr(self.loss, "is_of_module", False)

    def of_output(self, name: str) -> Dnn:
        loss, metrics = self.loss, self.metrics
        return replace(
            self,
            name=f"{self.name}: output {name}",
            loss=loss.get(name) if isinstance(loss, dict) else loss,
            metrics=metrics.get(name) if isinstance(metrics, dict) else metrics,
        )


@pytest.fixture
def make_dnn() -> Callable[..., Dnn]:
    def make(
        model: str = "hpcbal.models:softmax", name: str = "dnn", seed: int | None = None, **given: Any
    ) -> Dnn:
        optimizer = {key: given.pop(key) for key in list(given) if key in Optimizer.__dataclass_fields__}
        if "optimizer" in given:
            optimizer["name"] = given.pop("optimizer")
        task = {k: given.pop(k) for k in list(given) if k in ("loss", "metrics", "label_smoothing")}
        others = ("loss_weights", "class_weights", "freeze", "compile", "accumulate", "ema")
        task |= {k: given.pop(k) for k in list(given) if k in others}
        return Dnn(model, name, given, Optimizer(**optimizer), seed, **task)

    return make


@pytest.fixture
def make_spec() -> Callable[..., SampleSpec]:
    def make(shape: tuple[int | None, ...] = (6, 6, 1), dtype: str = "float64") -> SampleSpec:
        return SampleSpec.of(shape, dtype)

    return make


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    def make(n: int, seed: int = 0, shape: tuple[int, ...] = (6, 6, 1), dtype: str = "float64") -> Batch:
        rng = np.random.default_rng(seed)
        return Batch(np.arange(n), rng.normal(size=(n, *shape)).astype(dtype), rng.integers(0, 5, n))

    return make


@pytest.fixture(autouse=True)
def _models_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of the MPI tests (`training_models:...`) are used here too."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "mpi" / "programs"))
