"""`validate` knows the arguments of optimizers of PyTorch, from the source, without loading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.config.checks import frameworks
from hpcbal.config.schema.optimizer import KERAS_OPTIMIZERS, TORCH_OPTIMIZERS
from hpcbal.errors import ConfigError

TEXT = """\
defaults: {{batch_size: 4, stop: {{max_epochs: 2}}}}
dnns:
  - {{name: a, model: "hpcbal.models{room}:mlp", optimizer: {{name: {name}, learning_rate: 1, args: {args}}}}}
"""


def problems_of(folder: Path, name: str, args: str, room: str = ".torch") -> list[str]:
    path = folder / "run.yaml"
    path.write_text(TEXT.format(room=room, name=name, args=args), encoding="utf-8")
    try:
        load_config(path, check_imports=True)
    except ConfigError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    ("name", "args", "problem"),
    [
        ("sgd", "{dampening: x}", "args.dampening: got 'x', allowed by torch.optim:SGD: a number"),
        ("sgd", "{maximize: 1}", "args.maximize: got 1, allowed by torch.optim:SGD: true, false"),
        (
            "adam",
            "{bettas: [0.9, 0.99]}",
            "torch.optim:Adam has no argument 'bettas' (did you mean 'betas'",
        ),
        ("adafactor", "{d: [1]}", "args.d: got [1], allowed by torch.optim:Adafactor: a number"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, name: str, args: str, problem: str) -> None:
    (found,) = problems_of(tmp_path, name, args)
    assert problem in found
    assert "run.yaml:3: " in found


def test_right_arguments_and_those_of_keras_pass(tmp_path: Path) -> None:
    for name in TORCH_OPTIMIZERS:
        assert problems_of(tmp_path, name, "{foreach: null}") == []
    assert problems_of(tmp_path, "adam", "{betas: [0.9, 0.99], fused: true}") == []
    assert problems_of(tmp_path, "adam", "{beta_1: 0.8}", room="") == []


def test_without_pytorch_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "find_spec", lambda package: None)
    assert problems_of(tmp_path, "sgd", "{dampening: x}") == []


@pytest.mark.parametrize(
    ("name", "room", "words"),
    [
        ("lion", ".torch", "optimizer.name: got 'lion', allowed for a module of PyTorch: sgd, adam,"),
        ("ftrl", ".torch", "optimizer.name: got 'ftrl', allowed for a module of PyTorch: sgd, adam,"),
        ("asgd", "", "optimizer.name: got 'asgd', allowed for a Keras model: sgd, adam,"),
        ("radam", "", "set its framework: torch"),
        ("rprop", "", "optimizer.name: got 'rprop', allowed for a Keras model"),
    ],
)
def test_an_optimizer_of_the_other_framework_is_refused(
    tmp_path: Path, name: str, room: str, words: str
) -> None:
    (found,) = problems_of(tmp_path, name, "{}", room)
    assert words in found
    assert "run.yaml:3: " in found


@pytest.mark.parametrize("name", ["[adam]", "{adam: 1}"])
def test_a_name_that_is_no_text_is_one_problem(tmp_path: Path, name: str) -> None:
    (found,) = problems_of(tmp_path, name, "{betas: [0.9, 0.99]}")
    assert "optimizer.name: got " in found


def test_optimizers_are_those_of_their_framework(tmp_path: Path) -> None:
    for name in KERAS_OPTIMIZERS:
        assert problems_of(tmp_path, name, "{}", room="") == []
