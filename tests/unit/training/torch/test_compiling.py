"""Compiled modules train like others: one version for all shares, the same names, and clear refusals."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcbal import env
from hpcbal.config import load_config
from hpcbal.config.schema.objective import LossConfig
from hpcbal.errors import ConfigError, InputError
from hpcbal.training.backend import LocalCollective
from hpcbal.training.step import train_step
from hpcbal.training.torch.backend import TorchBackend

Make = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
"""PyTorch's compiler uses parts of PyTorch that are to go."""


def compiling() -> Any:
    """The module that is tested; its import takes seconds of each process that collects tests."""
    return importlib.import_module("hpcbal.training.torch.compiling")


def counters() -> Any:
    """The counts of PyTorch's compiler."""
    return importlib.import_module("torch._dynamo.utils").counters


NORMALISED, VECTOR = "torch_modules:normalised", "torch_modules:normalised_vector"


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(model: str = NORMALISED, **given: Any) -> Any:
        return TorchBackend(precision="float64").build(make_dnn(model=model, **given), make_spec(), 5, 0)

    return make


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of what is compiled; PyTorch forgets all of it in the end.

    To choose a vector unit of the processor, it would compile and load a program for each of them first.
    """
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.compiler_settings(str(tmp_path / "compiled")).items():
        monkeypatch.setenv(name, value)
    counters().clear()
    with importlib.import_module("torch._inductor.config").patch({"cpp.vec_isa_ok": False}):
        yield tmp_path / "compiled"
    torch.compiler.reset()


def cut(batch: Any, start: int, stop: int) -> Any:
    return type(batch)(batch.ids[start:stop], batch.x[start:stop], batch.y[start:stop])


@pytest.mark.timeout(300)
def test_shares_of_any_size_need_one_version_and_give_the_same_weights(
    build: Make, make_batch: Make, cache: Path
) -> None:
    plain, compiled = build(VECTOR), build(VECTOR, compile=True)
    assert any(cache.rglob("*.so"))
    versions = counters()["stats"]["unique_graphs"]
    assert versions == 2  # training and inference
    for step in range(2):
        batch = make_batch(24, step)
        for replica in (plain, compiled):
            parts = [replica.compute(cut(batch, a, b), 24).tensors for a, b in ((0, 5), (5, 12), (12, 24))]
            replica.apply([sum(tensor) for tensor in zip(*parts, strict=True)])
            train_step(replica, cut(batch, 0, 17), 17, LocalCollective())
    assert counters()["stats"]["unique_graphs"] == versions
    assert list(compiled.state()) == list(plain.state())
    for name, array in plain.state().items():
        np.testing.assert_allclose(compiled.state()[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
    batch = make_batch(7)
    np.testing.assert_allclose(compiled.predict(batch), plain.predict(batch), atol=1e-12)


@pytest.mark.timeout(300)
def test_a_loss_of_the_module_is_compiled_too(build: Make, make_batch: Make, cache: Path) -> None:
    given = {"model": "torch_losses:cross_entropy", "loss": LossConfig(name="module")}
    plain, compiled = build(**given), build(**given, compile=True)
    for replica in (plain, compiled):
        for size in (6, 9):
            train_step(replica, make_batch(size), size, LocalCollective())
    assert counters()["stats"]["unique_graphs"] > 0
    for name, array in plain.weights().items():
        np.testing.assert_allclose(compiled.weights()[name], array, rtol=1e-9, err_msg=name)


@pytest.mark.timeout(300)
def test_slices_are_compiled_with_more_than_one_sample(build: Make, make_batch: Make, cache: Path) -> None:
    given = {"model": VECTOR, "accumulate": 2}
    plain, compiled = build(**given), build(**given, compile=True)
    versions = counters()["stats"]["unique_graphs"]
    for replica in (plain, compiled):
        train_step(replica, make_batch(9), 9, LocalCollective())
    assert counters()["stats"]["unique_graphs"] == versions == 2
    for name, array in plain.state().items():
        np.testing.assert_allclose(compiled.state()[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


def test_what_the_compiler_logs_goes_to_the_log_of_the_rank(
    make_dnn: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    logger = logging.getLogger("torch")
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(sys.__stderr__)])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(compiling(), "is_rank", lambda: True)
    compiling().compile_module(make_dnn(model=NORMALISED), torch.nn.Linear(2, 2))
    logging.getLogger("torch._functorch").warning("g++ was killed")
    assert "g++ was killed" in caplog.text
    assert capfd.readouterr().err == ""


class _Before26:
    """The settings of a PyTorch before 2.6 refuse names that they do not have."""

    __slots__ = ("accumulated_cache_size_limit", "cache_size_limit")


@pytest.mark.parametrize("is_old", [True, False])
def test_every_pytorch_is_told_how_many_versions_there_may_be(
    monkeypatch: pytest.MonkeyPatch, make_dnn: Make, is_old: bool
) -> None:
    settings = _Before26() if is_old else compiling().settings
    monkeypatch.setattr(compiling(), "settings", settings)
    compiling().compile_module(make_dnn(model=NORMALISED), torch.nn.Linear(2, 2))
    assert settings.cache_size_limit == compiling().MOST_VERSIONS
    assert settings.accumulated_cache_size_limit == compiling().MOST_VERSIONS


def test_without_a_compiler_it_is_refused(build: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InputError, match=r"compile: got true, but there is no C\+\+ compiler no-such-comp"):
        build(compile=True)


def test_layers_that_meet_other_ranks_are_refused(build: Make) -> None:
    with pytest.raises(InputError, match=r"SyncBatchNorm\), allowed: false, or BatchNorm in their place"):
        build(compile=True, kind="SyncBatchNorm")


def test_a_users_directories_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    settings = env.compiler_settings("/run/compiled")
    assert settings["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"
    assert settings["TRITON_CACHE_DIR"] == "/run/compiled/triton"


@pytest.mark.parametrize(
    ("model", "framework", "is_refused"),
    [("hpcbal.models:mlp", "null", True), ("hpcbal.models.torch:mlp", "null", False)],
)
def test_keras_models_are_refused_by_validate(
    tmp_path: Path, model: str, framework: str, is_refused: bool
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 1}, "
        f"compile: true}}\ndnns: [{{name: a, model: '{model}', framework: {framework}}}]\n",
        encoding="utf-8",
    )
    if not is_refused:
        dnn = load_config(path, check_imports=True).dnns[0]
        assert dnn.compile
        assert not dnn.for_prediction().compile
        return
    with pytest.raises(ConfigError) as caught:
        load_config(path, check_imports=True)
    (problem,) = caught.value.problems
    assert "compile: got true, allowed for a Keras model: false; if it is a module of PyTorch" in problem
