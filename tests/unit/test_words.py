"""Words that people read: a slot is a slot, and a docstring says what a thing is or does.

On many machines a slot is a share of the cores, and not a GPU.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import hpcbal

ROOT = Path(hpcbal.__file__).parent
# These modules speak of real GPUs only.
OF_GPUS = {
    "cluster/layout.py",
    "config/schema/run.py",
    "env.py",
    "runtime/balance/device_memory.py",
    "runtime/record/console.py",
    "training/devices.py",
    "training/keras/tensorflow_setup.py",
    "training/keras/vector_replica.py",
}
HEADINGS = {"srun on GPUs", "or on GPUs"}  # of the line of `plan` for nodes with GPUs


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every text of a module with its line, without docstrings."""
    described = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for statement in body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.lineno, node.value


def test_no_message_table_or_report_calls_a_slot_a_gpu() -> None:
    modules = {str(path.relative_to(ROOT)): path for path in ROOT.rglob("*.py")}
    assert modules.keys() >= OF_GPUS
    found = [
        f"{name}:{line}: {text}"
        for name, path in modules.items()
        if name not in OF_GPUS
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8")))
        if re.search(r"\bGPUs?\b", text) and text not in HEADINGS
    ]
    assert found == []
    assert "GPU" not in (ROOT / "report" / "page" / "page.html").read_text(encoding="utf-8")


def test_no_docstring_begins_with_what() -> None:
    """It is half a sentence: "Return the ..." says what a function does, and a noun what a class is."""
    repository = Path(__file__).parents[2]
    found = [
        f"{path.relative_to(repository)}:{number}: {line}"
        for folder in ("hpcbal", "tests", "bench", "scripts")
        for path in sorted((repository / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.lstrip().startswith('"""What ')
    ]
    assert found == []
