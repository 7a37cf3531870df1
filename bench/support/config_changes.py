"""Configurations as people would never write them: seeded changes of those that come with hpcbal.

A change starts from a configuration of `configs/`, an example of the documents, or a preset. It alters the
tree of values (a key removed, a value of another type, two sections swapped), the text (a line twice, a tag,
a bomb of aliases), the bytes, or it adds `--set` texts.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from support.config_steps import KEYS, TEXT_STEPS, TREE_STEPS, Tree, any_value, damaged, text_of

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Change:
    """One changed configuration.

    Attributes:
        index: its number; with the seed it fixes everything else.
        base: the configuration that it started from.
        what: the steps that changed it, for people.
        content: the bytes of the file.
        overrides: texts for `--set`.
    """

    index: int
    base: str
    what: str
    content: bytes
    overrides: tuple[str, ...] = ()


def change(index: int, seed: int = 0) -> Change:
    """Change number `index` of the stream that `seed` names; the same on every machine."""
    rng = random.Random(f"{seed}/{index}")
    bases = _bases()
    name = rng.choice([name for name in bases for _ in range(1 if name in _presets() else 8)])
    tree = copy.deepcopy(bases[name])
    steps = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        step = rng.choice(TREE_STEPS)
        steps.append(f"{step.__name__}{step(tree, rng)}")
    text = text_of(tree)
    overrides: tuple[str, ...] = ()
    further = rng.random()
    if further < 0.12:
        text_step = rng.choice(TEXT_STEPS)
        steps, text = [text_step.__name__], text_step(text_of(bases[name]), rng)
    elif further < 0.24:
        overrides = tuple(_override(bases[name], rng) for _ in range(rng.randint(1, 2)))
        steps = [f"--set {given}" for given in overrides]
        text = text_of(bases[name])
    content = text.encode("utf-8", "surrogatepass")
    if further > 0.92:
        steps = ["bytes"]
        content = damaged(text_of(bases[name]).encode(), rng)
    return Change(index, name, "; ".join(steps)[:400], content, overrides)


@cache
def _bases() -> Mapping[str, Tree]:
    """Trees by name: the configurations, the presets, and the examples of the documents.

    An example that is a whole configuration stays as it is; one that shows a section is put into a small
    configuration; one that shows the keys of a DNN is left out.
    """
    found: dict[str, Tree] = {
        path.stem: yaml.safe_load(path.read_bytes()) for path in ROOT.glob("configs/*.yaml")
    } | dict(_presets())
    sections = found["reference"].keys() - {"dnns", "sweeps", "defaults"}
    for document in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))):
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", document.read_text("utf-8"), re.S)):
            example = yaml.safe_load(text)
            if not isinstance(example, dict):
                continue
            if example.keys() <= sections:
                example = {**found["heterogeneous"], **example}
            if "data" in example and example.keys() & {"dnns", "sweeps"}:
                found[f"{document.stem}-{number}"] = example
    return {name: found[name] for name in sorted(found)}


@cache
def _presets() -> Mapping[str, Tree]:
    """Scenarios of the simulator: files of another form, which `validate` must refuse."""
    return {
        path.stem: yaml.safe_load(path.read_bytes()) for path in ROOT.glob("hpcbal/simulator/presets/*.yaml")
    }


def _override(tree: Tree, rng: random.Random) -> str:
    """A `--set`: a key of the file, or one that is not there, with any value."""
    path: list[str] = []
    node = tree
    while isinstance(node, dict | list) and node and (not path or rng.random() < 0.7):
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node = node[key]
        path.append(
            str(node["name"])
            if isinstance(node, dict) and "name" in node and rng.random() < 0.5
            else str(key)
        )
    if rng.random() < 0.2:
        path.append(str(rng.choice(KEYS)))
    value = text_of(any_value(rng)).removesuffix("...\n").strip("\n")
    text = ".".join(path) + rng.choice(("=", "=", "=", "=", "=", "", "==", "=&a ", "=!x ", "=*a ")) + value
    return text.replace("\x00", "")  # no argument of a program can hold this
