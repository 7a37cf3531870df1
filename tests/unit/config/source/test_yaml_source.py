"""Reading YAML: lines, YAML 1.2 scalars, and accidents that must be rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.config.source import yaml_source
from hpcbal.config.source.yaml_source import Dumper, parse_yaml, read_yaml
from hpcbal.errors import ConfigError, ExitCode

CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(2000))
"""Every line puts the one before into a list."""
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9))
"""Ten lines that stand for two billion values."""
MERGED = "a0: &a0 x\n" + "".join(
    f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 10)}]}}\n" for i in range(9)
)
"""The same, as mappings that take over each other's keys; the first is none."""
SPECIMEN = """\
# every form of YAML that a configuration may use
name: "quoted \\u00e9"
base: &base {lr: 1e-3, steps: [1, 2.5, ~, true, 'one''s']}
dnns:
  - <<: *base
    "<<": plain key
    text: |
      two
      lines
  - {a: *base, b: "x: y", c: [ ], d: {}}
last: >-
  folded
  text
"""
DAMAGE = [
    "",
    " ",
    "  ",
    "\n",
    "\t",
    "\u2028",
    "\x85",
    "\x07",
    "\U0001f600",
    *":-[]{},#'|>%@`?~",
    '"',
    ": ",
    " #",
]
DAMAGE += ["&b ", "*base", "!x ", "0x1f", "<<: *base\n"]


def problem_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    (line,) = caught.value.problems
    return line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.5", 1.5),
        ("-3", -3),
        ("0x10", 16),
        ("0o17", 15),
        ("010", 10),
        (".inf", float("inf")),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("15%", "15%"),
        ("~", None),
        ("'3'", "3"),
        ("", None),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert parse_yaml(f"a: {text}", "f.yaml").plain() == {"a": value}


@pytest.mark.parametrize(
    "value", ["1e-3", "no", "0x1", "true", "~", "", "a: b", 1e-12, 10**20, None, False, "é"]
)
def test_what_is_written_reads_back(value: Any) -> None:
    text = yaml.dump({"a": [value, value]}, Dumper=Dumper, allow_unicode=True)
    assert parse_yaml(text, "f.yaml").plain() == {"a": [value, value]}
    assert yaml.safe_load(text) == {"a": [value, value]}


def test_every_value_knows_its_line_and_key() -> None:
    root = parse_yaml("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", "f.yaml")
    node, rest = root.deepest(("a", "c", 1, "y"))
    assert (node.where, node.key, node.value, rest) == ("f.yaml:5", "a.c.1.y", 2, ())


def test_every_duplicate_key_is_reported_with_both_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", "f.yaml")
    assert caught.value.problems == (
        "f.yaml:4: b.c: key given twice, first at f.yaml:3; keep one",
        "f.yaml:5: a: key given twice, first at f.yaml:1; keep one",
    )


def test_anchors_and_merge_keys_work() -> None:
    text = "a: &base {x: 1, y: 2}\nb:\n  <<: *base\n  y: 3\nc: *base\nd:\n  <<: [{z: 1}, *base]\n"
    plain = parse_yaml(text, "f.yaml").plain()
    assert plain["b"] == {"y": 3, "x": 1}
    assert plain["c"] == {"x": 1, "y": 2}
    assert plain["d"] == {"z": 1, "x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2\nb: 3\n", "f.yaml:2: not valid YAML: while parsing a flow sequence"),
        ("a: 1\n\tb: 2\n", "f.yaml:2: not valid YAML: while scanning for the next token"),
        ("a: *nothing\n", "f.yaml:1: not valid YAML: found undefined alias 'nothing' (column 4)"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not valid YAML: expected a single document in the stream"),
        ("a: \x00\n", "f.yaml: not valid YAML: unacceptable character"),
        ("a: &x [*x]\n", "f.yaml:1: a.0: an alias (*) inside its own anchor (&) never ends"),
        (
            "a: !!python/name:os.system\n",
            "f.yaml:1: a: the YAML tag 'tag:yaml.org,2002:python/name:os.system'",
        ),
        ("a: !!int x\n", "f.yaml:1: a: 'x' is not a YAML int"),
        ("a: !!bool x\n", "f.yaml:1: a: 'x' is not a YAML bool"),
        ("? [1, 2]\n: 3\n", "f.yaml:1: a key must be one word"),
        ("a: {<<: 3}\n", "f.yaml:1: a: '<<' takes a mapping"),
        ("a: !x {b: 1}\n", "f.yaml:1: a: the YAML tag '!x' is not allowed; remove it"),
        ("a: !x [1]\n", "f.yaml:1: a: the YAML tag '!x' is not allowed; remove it"),
        ("a: !!set {b, c}\n", "f.yaml:1: a: the YAML tag 'tag:yaml.org,2002:set' is not allowed; remove it"),
        (f"a: {'9' * 5000}\n", "f.yaml:1: a: '999"),
        ('a: "\\ud800"\n', "f.yaml:1: a: '\\ud800' is not a YAML str"),
        (
            f"a: {'[' * 1000}{']' * 1000}\n",
            "f.yaml:1: not valid YAML: more than 64 levels of mappings and lists",
        ),
        (CHAIN, "f.yaml:1: a62.0.0."),
        (
            BOMB,
            "f.yaml:1: a5.2.1.0.3.3.0: aliases (*) repeat more than 100000 values; write fewer, or use",
        ),
    ],
)
def test_text_that_is_not_a_configuration_is_refused_in_one_line(text: str, message: str) -> None:
    assert problem_of(text).startswith(message)


def test_mappings_that_take_over_too_much_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(MERGED, "f.yaml")
    *others, last = caught.value.problems
    assert others[0] == "f.yaml:1: a1: '<<' takes a mapping"
    assert len(others) < 10
    assert "aliases (*) repeat more than 100000 values" in last


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; see configs/reference.yaml for the keys"),
        (b"# only a comment\n", "is empty; see configs/reference.yaml for the keys"),
        (b"a: \xff\n", "not UTF-8 text (byte 3); save the file as UTF-8"),
        (b"- a\n- b\n", "got a list, allowed: a mapping of keys such as dnns, data"),
        (b"just text\n", "got 'just text', allowed: a mapping of keys such as dnns, data"),
    ],
)
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).endswith(message)
    assert caught.value.exit_code == ExitCode.WRONG_INPUT


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfseed: 1\n")
    assert read_yaml(path).plain() == {"seed": 1}


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; give the path of a YAML configuration"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a directory; give the path of a YAML file in it"):
        read_yaml(tmp_path)


@settings(deadline=None, max_examples=75)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(DAMAGE)), max_size=4), st.integers(0, 2))
def test_libyaml_and_the_parser_of_pyyaml_read_the_same(damage: list[tuple[int, str]], size: int) -> None:
    text = SPECIMEN
    for place, piece in damage:
        at = place % (len(text) + 1)
        text = text[:at] + piece + text[at + size :]
    with mock.patch.object(yaml_source.yaml, "__with_libyaml__", False):
        try:
            expected: object = parse_yaml(text, "f.yaml")
        except ConfigError as error:
            expected = error.problems
    try:
        found: object = parse_yaml(text, "f.yaml")
    except ConfigError as error:
        found = error.problems
    # Only what libyaml takes and PyYAML's own parser does not may differ, such as tabs between tokens.
    assert found == expected or (isinstance(expected, tuple) and "not valid YAML" in expected[0])
