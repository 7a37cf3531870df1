"""Who may import whom (docs/architecture.md), and that the light verbs stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hpcbal"
HEAVY = ("tensorflow", "keras", "mpi4py", "horovod", "h5py")

# Room -> (other packages, rooms of hpcbal) that it may import; every room may import itself.
PURE = ("policies", "control", "cluster.layout", "errors")
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "errors": ((), ()),
    "env": ((), ()),
    "stderr": ((), ()),
    "policies": (("numpy",), PURE),
    "control": (("numpy",), PURE),
    "cluster.layout": (("numpy",), PURE),
    "config": (("numpy", "yaml", "pydantic", "pydantic_core"), PURE),
    "data": (("numpy", "PIL", "h5py", "sklearn"), ("errors", "config", "policies")),
    "models": (("numpy", "tensorflow", "keras"), ("errors",)),
    "telemetry": (("numpy", "psutil", "yaml"), (*PURE, "telemetry")),
    "simulator": (("numpy", "yaml"), (*PURE, "simulator")),
    "checkpoint": (("numpy", "h5py"), (*PURE, "telemetry")),
    "speed_models": (("numpy", "keras", "statsmodels"), (*PURE, "speed_models")),
    "report": (("matplotlib",), ("errors", "telemetry")),
}
# Package -> the only places that may import it.
PLACES: dict[str, tuple[str, ...]] = {
    "tensorflow": (
        "training.tensorflow_backend",
        "training.traced_exchange",
        "training.horovod_collective",
        "models",
    ),
    "keras": ("training.tensorflow_backend", "training.keras_parts", "models", "speed_models.networks"),
    "horovod": ("training.horovod_collective",),
    "mpi4py": ("cluster", "dataplane", "runtime", "training"),
    "h5py": ("checkpoint", "data"),
    "matplotlib": ("report.png",),
    "psutil": ("telemetry.resource_use",),
    "statsmodels": ("speed_models.arima",),
    "yaml": ("config", "telemetry.output", "simulator.preset"),
    "pydantic": ("config",),
    "hpcbal.runtime": ("runtime", "cli"),
    "hpcbal.cli": ("cli", "__main__"),
}


def modules() -> dict[str, Path]:
    """Every module of the package by its name below `hpcbal`."""
    names = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements, in functions too, but not those for type checkers only."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and is_type_checking(statement.test):
            yield from statements(statement.orelse)
            continue
        for child in ast.iter_child_nodes(statement):
            inner = [child] if isinstance(child, ast.stmt) else getattr(child, "body", [])
            yield from statements(inner if isinstance(inner, list) else [])


def imports_of(path: Path) -> set[str]:
    """Dotted names that a file imports when it runs."""
    found: set[str] = set()
    for statement in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{path} imports relatively"
            module = str(statement.module)
            is_package = (PACKAGE.parent / module.replace(".", "/")).is_dir()
            found |= {f"{module}.{alias.name}" if is_package else module for alias in statement.names}
    return found


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


IMPORTS = {name: imports_of(path) for name, path in modules().items()}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    packages, rooms = ROOMS[room]
    wrong = []
    for name, imported in IMPORTS.items():
        if not within(name, (room,)):
            continue
        for target in imported:
            top = target.partition(".")[0]
            if top == "hpcbal":
                inside = target.removeprefix("hpcbal").lstrip(".")
                ok = inside in ("", "__version__") or within(inside, (room, *rooms))
            else:
                ok = top in packages or top in sys.stdlib_module_names
            if not ok:
                wrong.append(f"hpcbal.{name} imports {target}")
    assert wrong == []


@pytest.mark.parametrize("package", PLACES)
def test_a_package_is_imported_only_in_its_places(package: str) -> None:
    wrong = [
        f"hpcbal.{name} imports {target}"
        for name, imported in IMPORTS.items()
        for target in imported
        if within(target, (package,)) and not within(name, PLACES[package])
    ]
    assert wrong == []


def test_the_rules_see_imports_inside_functions_but_not_those_for_types(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import horovod\nelse:\n    import yaml\n"
        "def f():\n    try:\n        import h5py\n    except ImportError:\n        from mpi4py import MPI\n",
        encoding="utf-8",
    )
    assert imports_of(file) == {"typing", "yaml", "h5py", "mpi4py"}


CONFIG = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}
dnns: [{name: a, model: "hpcbal.models:resnet", args: {depth: 8}}, {name: b, model: "hpcbal.models:softmax"}]
backend: {name: emulated, rates: {a: {1: 10}, b: {1: 9}}}
slots: {per_node: 2}
"""
PROBE = """\
import sys
from hpcbal.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
heavy = sorted(set(%r) & set(sys.modules))
sys.exit(f"{heavy} imported" if heavy else code)
"""


@pytest.mark.parametrize("verb", ["--help", "run --help", "validate", "plan", "status", "report", "schema"])
def test_a_light_verb_imports_nothing_heavy(verb: str, tmp_path: Path) -> None:
    from hpcbal.telemetry.ledger import Ledger
    from hpcbal.telemetry.status import new_status, write_status

    config = tmp_path / "run.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    write_status(tmp_path / "status.json", new_status("a", 2))
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append("run-started", name="a", nodes=[{"host": "n", "num_gpus": 2}], versions={})
    directory = [str(tmp_path)]
    arguments = {
        "validate": [str(config)],
        "plan": [str(config)],
        "simulate": [str(config), "--samples", "100"],
        "status": directory,
    }
    arguments["report"] = [*directory, "--no-plots"]
    argument = arguments.get(verb, [])
    result = subprocess.run(
        [sys.executable, "-c", PROBE % (HEAVY,), *verb.split(), *argument],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert (result.returncode, result.stderr.replace("hpcbal: rates from backend.rates\n", "")) == (0, "")
    assert result.stdout


def test_every_environment_variable_is_in_the_table() -> None:
    from hpcbal.env import VARIABLES

    unknown = []
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        if path.name in ("env.py", "__init__.py") or "environ" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                looks_so = re.fullmatch(r"[A-Z][A-Z0-9]+(_[A-Za-z0-9]+)+", node.value)
                if looks_so and node.value not in VARIABLES:
                    unknown.append(f"hpcbal.{name}: {node.value}")
    assert unknown == []


def test_only_known_variables_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcbal import env

    monkeypatch.setenv("HPCBAL_OUTPUT", "x")
    monkeypatch.setenv("HPCBAL_LOG_LEVEL", "")
    assert env.read("HPCBAL_OUTPUT") == "x"
    assert env.read("HPCBAL_LOG_LEVEL") is None
    assert env.read("HPCBAL_OUTPUT", {}) is None
    with pytest.raises(KeyError, match="HPCBAL_OUPUT is not in"):
        env.read("HPCBAL_OUPUT")
