"""configs/reference.yaml shows every key with its default, and typos of every key are rejected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import EnsembleConfig, load_config
from hpcbal.config.load import load_config as load
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.document import DEFAULT_KEYS
from hpcbal.config.schema.fields import all_keys
from hpcbal.config.schema.operations import OPERATIONS, OperationItem
from hpcbal.config.schema.optimizer import ScheduleOfRateConfig
from hpcbal.config.schema.prune import SearchConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.yaml_source import read_yaml
from hpcbal.errors import ConfigError
from hpcbal.kinds import KINDS

REFERENCE = Path(__file__).parents[3] / "configs" / "reference.yaml"
FREE = re.compile(
    r"(data\.args|dnns\.\d+\.args|sweeps\.\d+\.(args|grid|zip|search\.space))\.|backend\.rates\."
)


def keys_of(node: YamlNode) -> Iterator[tuple[str, str]]:
    """(key as written, dotted path) of every key of a file, without names chosen by users."""
    if node.is_mapping:
        for name, child in node.value.items():
            if not FREE.match(child.key):
                yield str(name), child.key
                yield from keys_of(child)
    elif node.is_list:
        for child in node.value:
            yield from keys_of(child)


def test_the_reference_is_valid() -> None:
    config = load_config(REFERENCE, check_imports=True)
    assert config.dnns[0].name == "resnet-8"
    assert len(config.dnns) == 7


def test_the_reference_holds_exactly_the_keys_of_the_schema() -> None:
    written = {re.sub(r"\.\d+", "", key) for _, key in keys_of(read_yaml(REFERENCE))}
    operations = {f"preprocessing.{key}" for key in all_keys(OperationItem)}
    inherited = {f"dnns.{key}" for key in DEFAULT_KEYS}
    plain = {
        k for k in all_keys(EnsembleConfig) if not any(k == i or k.startswith(f"{i}.") for i in inherited)
    }
    moved = {k.replace("dnns.", "defaults.", 1) for k in all_keys(EnsembleConfig) if k not in plain}
    moved = {k for k in moved if not k.startswith("defaults.augment.")}  # shown at preprocessing
    plain = {k for k in plain if not k.startswith("backend.workers.")}  # shown in a comment: it is empty
    plain = {k for k in plain if not k.startswith(("data.validation.", "data.test."))}  # likewise: null
    plain = {k for k in plain if not k.startswith("searches.")}  # likewise: `sweeps` fill it
    sweeps = {f"sweeps.{key}" for key in ("name", "model", *DnnConfig.sweep_keys)}
    search = {f"sweeps.search.{f.alias or key}" for key, f in SearchConfig.model_fields.items()}
    assert (
        written
        == plain | operations | moved | set(EnsembleConfig.file_only_keys) | {"defaults"} | sweeps | search
    )


def test_the_reference_shows_the_real_defaults() -> None:
    written = load_config(REFERENCE).model_dump(by_alias=True)
    dnn = {
        "name": "a",
        "model": "m:f",
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
        "batch_size": 64,
        "stop": {"max_epochs": 10},
    }
    default = EnsembleConfig.model_validate({"name": "reference", "dnns": [dnn]}).model_dump(by_alias=True)
    first = written.pop("dnns")[0]
    expected = default.pop("dnns")[0]
    written.pop("preprocessing")
    default.pop("preprocessing")
    assert written == default
    schedule = first["optimizer"].pop("schedule")  # null by default, written out to show its keys
    assert schedule == ScheduleOfRateConfig(name="cosine").model_dump()
    assert expected["optimizer"].pop("schedule") is None
    stop = {**first["stop"], "monitor": expected["stop"]["monitor"]}
    assert {**first, "stop": stop}["optimizer"] == expected["optimizer"]
    for key in ("batch_size", "balance", "label_smoothing", "class_weights", "freeze"):
        assert first[key] == expected[key]
    assert stop == expected["stop"]


def test_every_operation_is_in_the_reference_with_its_defaults() -> None:
    operations = load_config(REFERENCE).preprocessing
    assert {operation.name for operation in operations} == set(OPERATIONS)
    for operation in operations:
        if operation.name in ("decode", "random_flip", "normalize"):
            item = OperationItem.model_validate({operation.name: {}})
            assert getattr(item, operation.name).model_dump() == operation.args


def test_every_key_has_a_line_of_comment_or_is_a_section() -> None:
    lines = REFERENCE.read_text(encoding="utf-8").splitlines()
    for name, key in keys_of(read_yaml(REFERENCE)):
        line = next(text for text in lines if re.match(rf"\s*(- )?{name}:", text))
        assert "#" in line or line.rstrip().endswith(":"), f"{key} has no comment"


def typos(name: str) -> set[str]:
    """A letter left out, one doubled and two swapped, in the middle of a word."""
    i = len(name) // 2
    deleted, doubled = name[:i] + name[i + 1 :], name[:i] + name[i] + name[i:]
    swapped = name[: i - 1] + name[i] + name[i - 1] + name[i + 1 :] if i else name
    return {word for word in (deleted, doubled, swapped) if word and word != name}


def renamed(node: YamlNode, key: str, new: str) -> Any:
    """Plain values of a tree with one key renamed."""
    if node.is_mapping:
        return {new if c.key == key else n: renamed(c, key, new) for n, c in node.value.items()}
    if node.is_list:
        return [renamed(child, key, new) for child in node.value]
    return node.value


ROOT = read_yaml(REFERENCE)


@pytest.mark.parametrize("key", [key for _, key in keys_of(ROOT)])
def test_typos_of_every_key_are_caught_and_named(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = key.rpartition(".")[2]
    section = ROOT.deepest([int(part) if part.isdigit() else part for part in key.split(".")[:-1]])[0]
    for typo in sorted(typos(name) - {str(k) for k in section.value}):
        changed = renamed(ROOT, key, typo)
        monkeypatch.setattr("hpcbal.config.load.read_yaml", lambda path, c=changed: tree(c))
        with pytest.raises(ConfigError) as caught:
            load(tmp_path / "run.yaml")
        text = str(caught.value)
        assert f".{typo}: unknown key" in text or f" {typo}: unknown key" in text, (typo, text)


def tree(value: Any, key: str = "") -> YamlNode:
    """Nodes of plain values, as if they were in a file."""
    if isinstance(value, dict):
        return YamlNode({k: tree(v, f"{key}.{k}".strip(".")) for k, v in value.items()}, "run.yaml:1", key)
    if isinstance(value, list):
        return YamlNode([tree(v, f"{key}.{i}") for i, v in enumerate(value)], "run.yaml:1", key)
    return YamlNode(value, "run.yaml:1", key)


def test_the_json_schema_names_every_key() -> None:
    schema = KINDS["ensemble"].file.json_schema()
    assert set(schema["properties"]) == {k for k in all_keys(EnsembleConfig) if "." not in k} | set(
        EnsembleConfig.file_only_keys
    )
    assert set(schema["$defs"]["SweepConfig"]["properties"]) > set(DnnConfig.sweep_keys)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["ScheduleConfig"]["properties"]["alpha"]["anyOf"][0]["maximum"] == 1.0
