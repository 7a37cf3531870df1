"""Values of `args` are checked against plain annotations; under other annotations all values pass."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import load_config
from hpcbal.config.checks.signatures import Allowed, allowed_by_name
from hpcbal.errors import ConfigError

TEXT = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 32, stop: {max_epochs: 9}}
dnns:
  - name: a
    model: hpcbal.models:resnet
    args: %s
"""


def allowed(parameters: str) -> dict[str, Allowed]:
    (function,) = ast.parse(f"def f({parameters}): ...").body
    assert isinstance(function, ast.FunctionDef)
    return allowed_by_name(function)


@pytest.mark.parametrize(
    ("parameter", "taken", "refused"),
    [
        ("a: int", [3, -1, True], [3.0, "3", None, [3]]),
        ("a: float = 0.5", [3, 0.5, True], ["0.5", None, {}]),
        ("a: str", ["x", ""], [1, None, True]),
        ("a: bool = False", [True, False], [0, "no", None]),
        ("a: int | None", [3, None], [0.5, "x"]),
        ("*, a: 'int | str'", [3, "x"], [0.5, None]),
        ("a: Optional[float]", [0.5, None], ["x"]),
        ("a: t.Union[int, str, None] = None", [3, "x", None], [0.5]),
        ("a: Literal['x', 'y'] = 'x'", ["x", "y"], ["z", 1, None]),
        ("a: Literal[1, 2] | None", [1, 2, None], [3, True, 1.0]),
        ("a: int = None", [3, None], ["x"]),
        ("a: int = 0.5", [3, 0.1], ["x", None]),
    ],
)
def test_plain_annotations_determine_what_is_allowed(
    parameter: str, taken: list[Any], refused: list[Any]
) -> None:
    rule = allowed(parameter)["a"]
    assert [value for value in taken if not rule.takes(value)] == []
    assert [value for value in refused if rule.takes(value)] == []


@pytest.mark.parametrize(
    "parameter",
    [
        "a",
        "a=3",
        "a: Path",
        "a: Path | str",
        "a: list[int]",
        "a: Any",
        "a: 'not an (expression'",
        "a: np.int64",
    ],
)
def test_other_annotations_allow_everything(parameter: str) -> None:
    assert allowed(parameter) == {}


def test_defaults_belong_to_the_last_parameters() -> None:
    rules = allowed("a: int, /, b: int = None, *, c: int, d: int = None")
    assert [rules[name].takes(None) for name in "abcd"] == [False, True, False, True]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("{depth: twenty}", "depth: got 'twenty', allowed by hpcbal.models:resnet: a whole number"),
        ("{depth: 20.5}", "depth: got 20.5, allowed by hpcbal.models:resnet: a whole number"),
        (
            "{depth: 8, width: wide}",
            "width: got 'wide', allowed by hpcbal.models:resnet: a whole number, null",
        ),
        (
            "{depth: 8, batch_norm: synced}",
            "batch_norm: got 'synced', allowed by hpcbal.models:resnet: local, sync (did you mean 'sync'?)",
        ),
    ],
)
def test_a_wrong_value_for_a_built_in_model_is_reported_with_its_line(
    tmp_path: Path, args: str, message: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT % args, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, check_imports=True)
    assert caught.value.problems == (f"{path}:5: dnns.0.args.{message}",)
    path.write_text(TEXT % "{depth: 8, width: null, stem: small, batch_norm: sync}", encoding="utf-8")
    load_config(path, check_imports=True)


def test_a_wrong_value_for_a_dataset_is_reported_too(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    data = "data: {dataset: 'hpcbal.data:image_folder', args: {path: 3}}\n"
    path.write_text(TEXT % "{depth: 8}" + data, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, check_imports=True)
    shown = "data.args.path: got 3, allowed by hpcbal.data:image_folder: text"
    assert caught.value.problems == (f"{path}:6: {shown}",)
