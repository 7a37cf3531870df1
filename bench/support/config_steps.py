"""Steps that change a configuration: its tree of values, its text, its bytes, and texts for `--set`.

Each step takes a random generator. Those of trees change them in place and return what they did, for people.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

ROOT = Path(__file__).resolve().parents[2]
Tree: TypeAlias = Any
Place: TypeAlias = tuple[Any, Any]
"""A mapping or a list, and a key or an index in it."""


@cache
def _reference() -> Tree:
    """The configuration with every key."""
    return yaml.safe_load((ROOT / "configs" / "reference.yaml").read_bytes())


def text_of(tree: Tree) -> str:
    """The tree in YAML."""
    return yaml.dump(tree, sort_keys=False, allow_unicode=True, Dumper=_PlainDumper, width=10**6)


class _PlainDumper(yaml.SafeDumper):
    """Writes no anchors of its own, and integers of any length."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class Raw(str):
    """Text that is written as it is, without quotes."""

    __slots__ = ()


def _write_raw(dumper: yaml.SafeDumper, raw: Raw) -> yaml.Node:
    for tag in ("int", "float", "str"):
        resolved = f"tag:yaml.org,2002:{tag}"
        if dumper.resolve(yaml.ScalarNode, str(raw), (True, False)) == resolved:
            return dumper.represent_scalar(resolved, str(raw))
    return dumper.represent_str(str(raw))


_PlainDumper.add_representer(Raw, _write_raw)

HUGE = Raw("9" * 400)
NUMBERS = (
    0, 1, -1, 2, 3, 10**6, 10**9, 2**31, 2**32, 2**53 + 1, 2**63, 10**30, -(10**30), HUGE, Raw(f"-{HUGE}"),
)  # fmt: skip
INF = float("inf")
FLOATS = (0.0, -0.0, 0.5, 1.0, 1e-320, 1e-9, 1e9, 1e300, 1.7e308, INF, -INF, float("nan"))
TEXTS = (
    "", " ", "a", "1", "1e9", "1e400", "true", "null", "~", "no", "15%", "1000%", f"{HUGE}%", "16MiB", "0B",
    f"{HUGE}GiB", "01:00:00", f"{HUGE}:00:00", "auto", "a:b", "hpcbal.data:digits", "hpcbal.models:softmax",
    "hpcbal.models:missing", "os:_exit", "..", ".", "/", "../..", "/dev/null", "/proc/self/mem", "x" * 300,
    "x" * 5000, "a/" * 3000, "\x00", "\x1b[31mred", "a\rb", "a\nb", "a\tb", "\x85", "\u202egnirts", "\u2028",
    "\ufeff", "\U0001f600", "\u0660", "\u00b2", "<script>", "{depth}", "{", "%s", "${HOME}", "~root", "sgd",
    "adam", "fixed", "partitioned", "independent", "homogeneous", "local", "tensorflow", "emulated", "loss",
    "val_loss", "min", "gray", "lb-bsp-cpu", "narx",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [None], [[]], [1], {"a": 1}, {1: 1}, {None: None}, {"": ""}, [{}], {True: 0},
    ["a"],
)  # fmt: skip
KEYS = (
    "", "a", "x" * 3000, "args", "name", "dnns", "0", 0, 1, -1, 1.5, True, None, "1", "sweeps", "defaults",
    "grid", "zip", "schema", "seed", "balance", "shares", "rates", "stop", "<<", "a.b", "\x1b[2J", "\x00",
    "\u202e", "__class__", "model_config", "self", "input_shape", "args.depth",
    "optimizer.learning_rate", 10**30,
)  # fmt: skip


HABITS: tuple[tuple[str, Any], ...] = (
    ("defaults.stop", {"max_epochs": 1, "patience": 3}), ("defaults.stop.monitor", "loss"),
    ("defaults.callbacks", ["keras.callbacks:EarlyStopping"]), ("defaults.class_weights", "balanced"),
    ("defaults.optimizer.lr", 0.1), ("defaults.optimizer.learning_rate", [0.1, 0.01]), ("defaults.epochs", 3),
    ("defaults.stop.patience", [1, 2]), ("defaults.batch_size", [16, 32]), ("defaults.loss", "mse"),
    ("dnns", {"a": {"model": "hpcbal.models:softmax"}}), ("gpus", 4), ("slots.per_node", [1, 2]),
    ("data.path", "train.h5"), ("data.args", {"path": "$HOME/x.h5"}), ("data.args", {"path": ["a", "b"]}),
    ("data.validation_fraction", 0), ("data.validation", "validation"), ("checkpoint.keep", ["best", "last"]),
    ("preprocessing", [{"normalize": {"mean": 127.5, "std": 58.0}}] * 2),
    ("preprocessing", [{"rescale": 255}]),
    ("defaults.init", {"from": "best.h5"}), ("defaults.model", "json:loads"), ("output.dir", "$HOME/../run"),
)  # fmt: skip
"""Keys and values that people bring from other tools, or that go together badly."""


def any_value(rng: random.Random) -> Tree:
    """A number, text, or something else that may be anywhere."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(NUMBERS)
    if kind < 0.5:
        return rng.choice(FLOATS)
    if kind < 0.8:
        return rng.choice(TEXTS)
    return copy.deepcopy(rng.choice(OTHERS))


def _places(tree: Tree) -> Iterator[Place]:
    for key, child in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(child, dict | list):
            yield from _places(child)


def _place(tree: Tree, rng: random.Random) -> Place | None:
    places = list(_places(tree))
    return rng.choice(places) if places else None


def _holder(tree: Tree, rng: random.Random) -> Tree:
    """The whole tree, or a mapping or list in it."""
    return rng.choice(
        [tree, *(owner[key] for owner, key in _places(tree) if isinstance(owner[key], dict | list))]
    )


def remove(tree: Tree, rng: random.Random) -> str:
    """A key or an item less."""
    place = _place(tree, rng)
    if place is None:
        return ""
    owner, key = place
    del owner[key]
    return f" {key!r}"


def replace(tree: Tree, rng: random.Random) -> str:
    """Another value, of any type."""
    place = _place(tree, rng)
    if place is None:
        return ""
    owner, key = place
    owner[key] = any_value(rng)
    return f" {key!r} by {owner[key]!r}"


def retype(tree: Tree, rng: random.Random) -> str:
    """The same value as another type."""
    place = _place(tree, rng)
    if place is None:
        return ""
    owner, key = place
    old = owner[key]
    forms: tuple[Callable[[Any], Any], ...] = (
        str,
        lambda v: [v],
        lambda v: {"value": v},
        repr,
        bool,
        lambda v: [v, v],
    )
    owner[key] = rng.choice(forms)(old)
    return f" {key!r} to {owner[key]!r}"


def scale(tree: Tree, rng: random.Random) -> str:
    """A number becomes another number."""
    numbers = [
        (o, k) for o, k in _places(tree) if isinstance(o[k], int | float) and not isinstance(o[k], bool)
    ]
    if not numbers:
        return ""
    owner, key = rng.choice(numbers)
    owner[key] = rng.choice(
        (*NUMBERS, *FLOATS, -owner[key], owner[key] * 1000, owner[key] / 1000, owner[key] + 1)
    )
    return f" {key!r} to {owner[key]!r}"


def add_key(tree: Tree, rng: random.Random) -> str:
    holder = _holder(tree, rng)
    value = any_value(rng)
    if isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), value)
        return f" item {value!r}"
    key = rng.choice(KEYS)
    holder[key] = value
    return f" {key!r}: {value!r}"


def add_known_key(tree: Tree, rng: random.Random) -> str:
    """A key of the reference, where the reference has it, with its value or another."""
    owner, key = _reference(), None
    path: list[str] = []
    while isinstance(owner, dict) and owner:
        key = rng.choice(sorted(owner))
        path.append(key)
        if not (isinstance(owner[key], dict) and owner[key]) or (len(path) > 1 and rng.random() < 0.1):
            break
        owner = owner[key]
    for part in path[:-1]:
        if not isinstance(tree, dict) or not isinstance(tree.setdefault(part, {}), dict):
            return ""
        tree = tree[part]
    tree[key] = copy.deepcopy(owner[key]) if rng.random() < 0.6 else any_value(rng)
    return f" {'.'.join(path)}: {tree[key]!r}"


def habit(tree: Tree, rng: random.Random) -> str:
    """A key as other tools have it."""
    path, value = rng.choice(HABITS)
    *owners, key = path.split(".")
    for owner in owners:
        if not isinstance(tree, dict) or not isinstance(tree.setdefault(owner, {}), dict):
            return ""
        tree = tree[owner]
    tree[key] = copy.deepcopy(value)
    return f" {path}: {value!r}"


def nudge(tree: Tree, rng: random.Random) -> str:
    """A number becomes one of about its size: most of these configurations are good."""
    numbers = [
        (o, k) for o, k in _places(tree) if isinstance(o[k], int | float) and not isinstance(o[k], bool)
    ]
    if not numbers:
        return ""
    owner, key = rng.choice(numbers)
    old = owner[key]
    owner[key] = rng.choice(
        (old * 2, old + 1, max(old - 1, 0), old // 2 if isinstance(old, int) else old / 2, old * 10)
    )
    return f" {key!r} to {owner[key]!r}"


def choose(tree: Tree, rng: random.Random) -> str:
    """A word becomes another word that some key takes."""
    words = [(o, k) for o, k in _places(tree) if isinstance(o[k], str)]
    if not words:
        return ""
    owner, key = rng.choice(words)
    owner[key] = rng.choice(
        [str(text) for text in TEXTS if str(text).replace("-", "").replace("_", "").isalpha()]
    )
    return f" {key!r} to {owner[key]!r}"


def swap(tree: Tree, rng: random.Random) -> str:
    """Two values in each other's place."""
    places = list(_places(tree))
    if len(places) < 2:
        return ""
    (a, i), (b, j) = rng.sample(places, 2)
    a[i], b[j] = copy.deepcopy(b[j]), copy.deepcopy(a[i])
    return f" {i!r} and {j!r}"


def rename(tree: Tree, rng: random.Random) -> str:
    """A key with another name."""
    mappings = [(o, k) for o, k in _places(tree) if isinstance(o, dict)]
    if not mappings:
        return ""
    owner, key = rng.choice(mappings)
    new = rng.choice((*KEYS, f"{key}s", str(key).upper(), str(key)[:-1], str(key)))
    owner[new] = owner.pop(key)
    return f" {key!r} to {new!r}"


def repeat(tree: Tree, rng: random.Random) -> str:
    """An item of a list, again; sometimes with another case."""
    lists = [owner[key] for owner, key in _places(tree) if isinstance(owner[key], list) and owner[key]]
    if not lists:
        return ""
    items = rng.choice(lists)
    again = copy.deepcopy(rng.choice(items))
    if isinstance(again, dict) and isinstance(again.get("name"), str):
        again["name"] = rng.choice((again["name"], again["name"].upper(), again["name"] + "-2"))
    items.insert(rng.randint(0, len(items)), again)
    return ""


def nest(tree: Tree, rng: random.Random) -> str:
    """A value inside mappings and lists."""
    place = _place(tree, rng)
    if place is None:
        return ""
    owner, key = place
    for _ in range(rng.choice((2, 10, 60))):
        owner[key] = [owner[key]] if rng.random() < 0.5 else {"a": owner[key]}
    return f" {key!r}"


TREE_STEPS = (
    remove, replace, replace, retype, scale, scale, nudge, nudge, choose, add_key, add_known_key,
    add_known_key, swap, rename, repeat, nest, habit,
)  # fmt: skip


def double_line(text: str, rng: random.Random) -> str:
    """A line twice."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    return "\n".join([*lines[: at + 1], *lines[at:]])


def lose_line(text: str, rng: random.Random) -> str:
    """A line less."""
    lines = text.splitlines()
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def swap_lines(text: str, rng: random.Random) -> str:
    """Two lines in each other's place."""
    lines = text.splitlines()
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


def indent(text: str, rng: random.Random) -> str:
    """A line further to the right."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((" ", "  ", "\t", "- ", "? ", ": ")) + lines[at]
    return "\n".join(lines)


def tag(text: str, rng: random.Random) -> str:
    """A tag, an anchor or an alias before a value."""
    tags = (
        "!tag",
        "!!str",
        "!!int",
        "!!python/object/apply:os.system",
        "!<x>",
        "&a",
        "*a",
        "!!binary",
        "!!set",
        "|",
        ">",
    )
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = re.sub(r"(:|-) ", lambda m: f"{m[0]}{rng.choice(tags)} ", lines[at], count=1)
    return "\n".join(lines)


def bomb(text: str, rng: random.Random) -> str:
    """Aliases of aliases: a few lines that stand for a billion values."""
    width, depth = rng.choice(((10, 9), (100, 5), (2, 40), (20_000, 1)))
    rows = ["a0: &a0 {x: 1}"] if rng.random() < 0.5 else ["a0: &a0 [x, x]"]
    opened, closed = ("[", "]") if rng.random() < 0.7 else ("{<<: [", "]}")
    rows += [f"a{i + 1}: &a{i + 1} {opened}{', '.join([f'*a{i}'] * width)}{closed}" for i in range(depth)]
    return "\n".join([*rows, text.rstrip(), ""]) + rng.choice(("", f"data: {{args: {{bomb: *a{depth}}}}}\n"))


def deepen(text: str, rng: random.Random) -> str:
    """Brackets in brackets, 1,000 or more deep."""
    depth = rng.choice((100, 1000, 20_000))
    return (
        text + "\ndata: " + rng.choice(("[" * depth + "]" * depth, "{a: " * depth + "}" * depth, "[" * depth))
    )


def insert_text(text: str, rng: random.Random) -> str:
    """Some text somewhere."""
    at = rng.randint(0, len(text))
    piece = rng.choice(
        (*TEXTS, "---\n", "...\n", "%YAML 1.2\n", "{", "}", "[", "]", "#", "'", '"', ": ", "- ", "? ")
    )
    return text[:at] + str(piece) + text[at + rng.choice((0, 0, 1, 20)) :]


def twice(text: str, rng: random.Random) -> str:
    """The whole text, twice."""
    return text + rng.choice(("---\n", "", "...\n")) + text


TEXT_STEPS = (
    double_line,
    lose_line,
    swap_lines,
    indent,
    tag,
    tag,
    bomb,
    deepen,
    insert_text,
    insert_text,
    twice,
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content with some bytes changed, added or removed."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
            case 3:
                del data[at : at + rng.choice((1, 10, 200))]
            case 4:
                data[at:at] = rng.choice(
                    (b"\xff\xfe", b"\xef\xbb\xbf", b"\x00" * 50, b"\xc3\x28", b"\xed\xa0\x80")
                )
        if not data:
            break
    return bytes(data)
