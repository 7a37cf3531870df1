"""Any configuration loads, or is refused with lines that name a place; nothing else happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcbal.config import EnsembleConfig, load_config, resolved_yaml
from hpcbal.config.source.yaml_source import Dumper
from hpcbal.errors import ConfigError

REFERENCE = Path(__file__).parents[3] / "configs" / "reference.yaml"
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8),
    st.sampled_from(["15%", "1MiB", "01:00:00", "a:b", "{depth}", "sgd", "a.b"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.", max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
WITH_INT_KEYS = VALUES | st.dictionaries(st.integers(-2, 9), VALUES, max_size=3)


def paths_in(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, child in items for path in [(*prefix, key), *paths_in(child, (*prefix, key))]]


def load_or_problems(file: Path, overrides: list[str]) -> EnsembleConfig | tuple[str, ...]:
    try:
        return load_config(file, overrides)
    except ConfigError as error:
        return error.problems


TEXT = REFERENCE.read_text(encoding="utf-8")
PATHS = paths_in(yaml.safe_load(TEXT))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(PATHS), value=WITH_INT_KEYS, as_override=st.booleans())
@example(path=("dnns", 0, "args", "depth"), value=float("nan"), as_override=False)
def test_any_value_anywhere_loads_or_is_refused_with_its_place(
    tmp_path: Path, path: tuple[Any, ...], value: Any, as_override: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "run.yaml"
    tree = yaml.safe_load(TEXT)
    overrides = []
    if as_override:
        text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, allow_unicode=True, width=10**6)
        overrides = [f"{'.'.join(str(part) for part in path)}={text.removesuffix('...' + chr(10)).strip()}"]
    else:
        node = tree
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value
    file.write_text(yaml.dump(tree, Dumper=Dumper, allow_unicode=True), encoding="utf-8")
    config = load_or_problems(file, overrides)
    if isinstance(config, tuple):
        assert config
        for line in config:
            assert re.match(rf"{re.escape(str(file))}:\d+: |--set ", line), line
            assert as_override or "\n" not in line
        return
    written = resolved_yaml(config)
    file.write_text(written, encoding="utf-8")
    again = load_config(file)
    assert resolved_yaml(again) == written
    assert again == config or ".nan" in written  # NaN differs from itself


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.integers(0, len(TEXT)),
    length=st.integers(0, 60),
    inserted=st.text("{}[]:-,&*!|>#'\" \n\ta1", max_size=6),
)
def test_a_damaged_file_loads_or_is_refused_with_its_place(
    tmp_path: Path, start: int, length: int, inserted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "run.yaml"
    file.write_text(TEXT[:start] + inserted + TEXT[start + length :], encoding="utf-8")
    config = load_or_problems(file, [])
    assert isinstance(config, EnsembleConfig) or all(line.startswith(f"{file}:") for line in config)
