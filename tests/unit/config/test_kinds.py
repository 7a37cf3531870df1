"""The kind of a run: which ones a file may name, and what all of them share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import EnsembleConfig, RunConfig, load_config, resolved_yaml
from hpcbal.config.schema.fields import keys_of
from hpcbal.errors import ConfigError
from hpcbal.kinds import KINDS

DNNS = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}
dnns: [{name: a, model: "hpcbal.models:softmax"}]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_without_kind_is_an_ensemble(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, DNNS))
    assert isinstance(config, EnsembleConfig)
    assert config.kind == "ensemble"
    assert config == load_config(write(tmp_path, f"kind: ensemble\n{DNNS}"))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "kind: parameter-server",
            "got 'parameter-server', allowed: ensemble, paramserver, jobs (did you mean 'paramserver'?)",
        ),
        ("kind: ensembel", "got 'ensembel', allowed: ensemble, paramserver, jobs (did you mean 'ensemble'?)"),
        ("kind: [ensemble]", "got ['ensemble'], allowed: ensemble, paramserver, jobs"),
        ("kind:", "got nothing (null), allowed: ensemble, paramserver, jobs"),
        ("kind: {ensemble: 1}", "got {'ensemble': 1}, allowed: ensemble, paramserver, jobs"),
    ],
)
def test_an_unknown_kind_is_the_only_error_and_lists_the_known_ones(
    tmp_path: Path, line: str, shown: str
) -> None:
    path = write(tmp_path, f"servers: 3\n{line}\ndnns: 7\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.problems == (f"{path}:2: kind: {shown}",)


def test_an_override_names_the_kind_too(tmp_path: Path) -> None:
    path = write(tmp_path, f"kind: other\n{DNNS}")
    assert load_config(path, ["kind=ensemble"]).kind == "ensemble"
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["kind=ensemble", "kind=third"])
    assert caught.value.problems == ("--set kind=third: got 'third', allowed: ensemble, paramserver, jobs",)


def test_the_written_out_config_says_its_kind_and_begins_with_what_all_kinds_share(tmp_path: Path) -> None:
    text = resolved_yaml(load_config(write(tmp_path, DNNS)))
    keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert keys[: len(keys_of(RunConfig))] == keys_of(RunConfig)
    assert "kind: ensemble\n" in text


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_the_shared_keys_and_its_own_name(name: str) -> None:
    config = KINDS[name].file.config
    assert set(keys_of(config)) > set(keys_of(RunConfig))
    assert config.model_fields["kind"].default == name


@pytest.mark.parametrize("name", KINDS)
def test_every_part_of_a_kind_is_found(name: str) -> None:
    kind = KINDS[name]
    assert kind.name == name
    assert kind.file.json_schema()["title"]
    assert kind.file.may_change.keys
    assert kind.view.status_type.__required_keys__
    assert kind.runs.with_submitted
    assert callable(kind.verb("planning"))
    assert callable(kind.verb("simulating"))


def texts_in(schema: Any) -> Iterator[str]:
    """All descriptions in a JSON schema."""
    for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if key == "description" and isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            yield from texts_in(value)


@pytest.mark.parametrize("name", KINDS)
def test_no_description_of_a_key_names_a_class(name: str) -> None:
    """A rename of a class must not reach the sentences."""
    schema = KINDS[name].file.json_schema()
    for text in texts_in(schema):
        assert not set(re.findall(r"\w+", text)) & schema["$defs"].keys(), text
