"""Read YAML into nodes that know their line numbers; duplicate keys and similar accidents are errors.

Scalars follow the core schema of YAML 1.2, not YAML 1.1 as in PyYAML: `1e-3` is a number, `no` and `12:30:00`
are text.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from hpcbal.config.source.nodes import Key, YamlNode, join_key, show
from hpcbal.errors import ConfigError
from hpcbal.safe_text import shortened

MAX_DEPTH = 64
"""Mappings and lists inside each other; real configurations need fewer than ten."""
MAX_REPEATED = 100_000
"""Values that aliases may repeat: a few lines of aliases can stand for more than fits into memory."""

_MAX_BYTES = 64 << 20
_PREFIX = "tag:yaml.org,2002:"
_RESOLVERS = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
)


_COLLECTIONS = (f"{_PREFIX}map", f"{_PREFIX}seq")


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with YAML 1.2 scalars; it goes only so deep."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Count how deep this value is: PyYAML calls itself for every level."""
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=self.peek_event().start_mark)
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


if yaml.__with_libyaml__:

    class _FastLoader(_Loader, yaml.CSafeLoader):
        """The same with libyaml as the parser, which is several times faster.

        Only the events come from libyaml. Its own composer calls itself for every level, so that a deep
        document ends the process.
        """

        check_event = yaml.CSafeLoader.check_event
        get_event = yaml.CSafeLoader.get_event
        peek_event = yaml.CSafeLoader.peek_event

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)


class Dumper(yaml.SafeDumper):
    """Writes YAML that `parse_yaml`, and any YAML 1.1 reader, reads back to the same values."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value twice if it occurs twice: anchors confuse readers."""
        return True


_TOO_DEEP = f"more than {MAX_DEPTH} levels of mappings and lists inside each other"

# The output must also read the same under the rules of 1.1, so the writer knows both and quotes more.
_Loader.yaml_implicit_resolvers = {}
Dumper.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeDumper.yaml_implicit_resolvers.items()}
for _class in (_Loader, Dumper):
    for _tag, _pattern, _first in _RESOLVERS:
        _class.add_implicit_resolver(
            _PREFIX + _tag,
            re.compile(f"^(?:{_pattern})$"),
            [c if c != "\0" else "" for c in _first],
        )


def read_yaml(path: str | Path, *, may_be_empty: bool = False, keys: str = "dnns, data") -> YamlNode:
    """Read a configuration file.

    Args:
        path: the file; messages name it as given here.
        may_be_empty: whether the value None, of a file with at most comments, is allowed.
        keys: examples of its keys, for messages.

    Raises:
        ConfigError: if the file is missing, a directory, not UTF-8, too large, empty, not YAML, or repeats a
            key.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file; give the path of a YAML configuration"]) from None
    except IsADirectoryError:
        raise ConfigError([f"{path}: is a directory; give the path of a YAML file in it"]) from None
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8"
        raise ConfigError([message]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    if len(content) > _MAX_BYTES:
        raise ConfigError([f"{path}: more than {_MAX_BYTES >> 20} MiB; give a YAML configuration"])
    root = parse_yaml(text, str(path))
    if root.value is None and may_be_empty:
        return root
    if root.value is None:
        raise ConfigError([f"{path}: is empty; see configs/reference.yaml for the keys"])
    if not root.is_mapping:
        raise ConfigError([f"{root.where}: got {_kind(root)}, allowed: a mapping of keys such as {keys}"])
    return root


def parse_yaml(text: str, source: str, *, fixed_where: str | None = None) -> YamlNode:
    """Parse YAML text.

    Args:
        text: one YAML document.
        source: file name for messages, in front of `:line`.
        fixed_where: if given, the origin of every node instead of `source:line`.

    Raises:
        ConfigError: if the text is not YAML, or repeats keys (all of them are listed).
    """
    builder = _Builder(source, fixed_where)
    try:
        composed = _compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = fixed_where or (f"{source}:{mark.line + 1}" if mark else source)
        column = f" (column {mark.column + 1})" if mark else ""
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise ConfigError([f"{where}: not valid YAML: {what}{column}"]) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number that PyYAML cannot convert
        message = f"{fixed_where or source}: not valid YAML: {' '.join(str(error).split())}"
        raise ConfigError([message]) from None
    if composed is None:
        return YamlNode(None, fixed_where or f"{source}:1", "")
    try:
        root = builder.build(composed, "", builder.where(composed))
    except _TooLargeError as error:
        raise ConfigError([*dict.fromkeys(builder.problems), str(error)]) from None
    if builder.problems:
        raise ConfigError(list(dict.fromkeys(builder.problems)))
    return root


def _compose(text: str) -> yaml.Node | None:
    """PyYAML's tree of the text; None if there is no document.

    Raises:
        yaml.YAMLError: from PyYAML's own parser, so that the message is the same with and without libyaml.
    """
    if yaml.__with_libyaml__:
        with contextlib.suppress(yaml.YAMLError):
            return _FastLoader(text).get_single_node()
    return _Loader(text).get_single_node()


def _kind(node: YamlNode) -> str:
    if node.is_list:
        return "a list"
    return show(node.value)


class _TooLargeError(Exception):
    """The aliases of a document stand for too much to be written out; the text is for the user."""


class _Builder:
    """Turns PyYAML's nodes into ours and collects their problems."""

    def __init__(self, source: str, fixed_where: str | None) -> None:
        self._source = source
        self._fixed_where = fixed_where
        self._open: list[yaml.Node] = []
        self._built: set[int] = set()  # ids of nodes, which live as long as the document
        self._num_repeated = 0
        self.problems: list[str] = []

    def where(self, node: yaml.Node) -> str:
        return self._fixed_where or f"{self._source}:{node.start_mark.line + 1}"

    def _complain(self, where: str, key: str, message: str) -> None:
        self.problems.append(YamlNode(None, where, key).problem(message))

    def build(self, node: yaml.Node, key: str, where: str) -> YamlNode:
        if node in self._open:
            self._complain(where, key, "an alias (*) inside its own anchor (&) never ends")
            return YamlNode(None, where, key)
        self._count(node, key, where)
        self._open.append(node)
        try:
            if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
                self._complain(where, key, f"the YAML tag {shortened(node.tag)!r} is not allowed; remove it")
                return YamlNode(None, where, key)
            if isinstance(node, yaml.MappingNode):
                return YamlNode(self._mapping(node, key), where, key)
            if isinstance(node, yaml.SequenceNode):
                items = [
                    self.build(item, join_key(key, i), self.where(item)) for i, item in enumerate(node.value)
                ]
                return YamlNode(items, where, key)
            return YamlNode(self._scalar(node, key), where, key)
        finally:
            self._open.pop()

    def _count(self, node: yaml.Node, key: str, where: str) -> None:
        """Count a value that has been built before, and end with one sentence if there are too many.

        Raises:
            _TooLargeError: aliases repeat too many values, or put too many into each other.
        """
        self._num_repeated += id(node) in self._built
        self._built.add(id(node))
        if self._num_repeated > MAX_REPEATED:
            what = (
                f"aliases (*) repeat more than {MAX_REPEATED} values; write fewer, or use sweeps and defaults"
            )
        elif len(self._open) >= MAX_DEPTH:
            what = f"{_TOO_DEEP}, with what aliases (*) stand for"
        else:
            return
        raise _TooLargeError(YamlNode(None, where, key).problem(what))

    def _mapping(self, node: yaml.MappingNode, key: str) -> dict[Key, YamlNode]:
        result: dict[Key, YamlNode] = {}
        shared: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(self.where(key_node), key, "a key must be one word")
                continue
            if key_node.value == "<<" and not key_node.style:  # libyaml has an empty style
                shared.append(value_node)
                continue
            name = self._scalar(key_node, key)
            if name in result:
                first = result[name].where
                message = f"key given twice, first at {first}; keep one"
                self._complain(self.where(key_node), join_key(key, name), message)
                continue
            result[name] = self.build(value_node, join_key(key, name), self.where(key_node))
        for value_node in shared:
            self._merge(result, value_node, key)
        return result

    def _merge(self, result: dict[Key, YamlNode], value_node: yaml.Node, key: str) -> None:
        """`<<: *base`: add the keys that are not given here."""
        parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
        for part in parts:
            if not isinstance(part, yaml.MappingNode):
                self._count(part, key, self.where(part))
                self._complain(self.where(part), key, "'<<' takes a mapping")
                continue
            base = self.build(part, key, self.where(part))
            if base.is_mapping:
                for name, child in base.value.items():
                    result.setdefault(name, child)

    def _scalar(self, node: yaml.Node, key: str) -> Any:
        tag = node.tag.removeprefix(_PREFIX)
        text = str(node.value)
        try:
            if tag == "str":
                if not text.isascii():
                    text.encode()  # "\\ud800" is half a character, which no file and no terminal takes
                return text
            if tag == "null":
                return None
            if tag == "bool":
                return {"true": True, "false": False}[text.lower()]
            if tag == "int":
                return int(text, 0) if text[:2].lower() in ("0o", "0x") else int(text)
            if tag == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError):
            self._complain(self.where(node), key, f"{shortened(text)!r} is not a YAML {tag}")
            return None
        self._complain(
            self.where(node), key, f"the YAML tag {shortened(node.tag)!r} is not allowed; remove it"
        )
        return None
