"""Who may import whom (docs/architecture.md), and that the light verbs stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hpcbal"
HEAVY = ("tensorflow", "keras", "mpi4py", "horovod", "h5py", "pyarrow")
# Verbs that start without these, besides HEAVY.
NOT_NEEDED: dict[str, tuple[str, ...]] = {
    "--help": ("numpy", "pydantic", "yaml", "hpcbal.config", "hpcbal.policies", "hpcbal.control"),
    "run --help": ("numpy", "pydantic", "yaml", "hpcbal.config", "hpcbal.policies", "hpcbal.control"),
    "submit --help": ("numpy", "pydantic", "yaml", "hpcbal.config", "hpcbal.policies", "hpcbal.control"),
    "validate": ("numpy", "hpcbal.policies", "hpcbal.control", "hpcbal.telemetry", "hpcbal.simulator"),
    "plan": (
        "hpcbal.policies.batching",
        "hpcbal.data",
        "hpcbal.report",
        "hpcbal.telemetry.ledger",
        "hpcbal.telemetry.claim",
    ),
    "schema": ("numpy", "hpcbal.policies", "hpcbal.control"),
    "status": ("numpy", "pydantic", "hpcbal.policies", "hpcbal.control"),
    "report": ("numpy", "hpcbal.policies", "hpcbal.control"),
    "compare": ("numpy", "hpcbal.policies", "hpcbal.control", "hpcbal.simulator"),
    "resize": ("numpy", "hpcbal.policies", "hpcbal.control", "hpcbal.simulator"),
    "forecast": ("pydantic", "yaml", "jinja2", "hpcbal.policies", "hpcbal.control", "hpcbal.simulator"),
}

# Rooms from the ground up, with the other packages that each may import. A room may import itself and the
# rooms above it in this table. A module belongs to the room with the longest name that fits; `hpcbal` is the
# package's own `__init__`.
TABLE = """\
hpcbal
garbage
stop_signals
safe_text
errors
env
processes
user_code
kinds
events               pydantic_core
cluster.layout
cluster.systems
comm                 mpi4py numpy
cluster              mpi4py
ensembling           numpy
policies.batching    numpy
policies.samples     numpy
policies.configuring numpy
policies.grouping    numpy
policies             numpy
forecast             numpy
paramserver.api numpy
paramserver.store    numpy
control
samplers             numpy torch
telemetry.files
telemetry.resources
telemetry.streams
telemetry.ledger     pydantic pydantic_core
telemetry.views
telemetry.claim      yaml
telemetry
checkpoint           h5py numpy
simulator            numpy yaml
config.source        yaml
config.schema        pydantic pydantic_core
config.callables
config.balance
config.checks        pydantic
config.listed
config.unknown_key   pydantic
config.messages      pydantic pydantic_core
config.expand        pydantic
config.imports
config.kinds         pydantic
config.load          pydantic pydantic_core yaml
config.submission    pydantic yaml
config.site          pydantic
config
config.scheduling
searching            optuna
models               keras numpy tensorflow torch
data                 PIL h5py numpy pyarrow pydantic pydantic_core simplejpeg sklearn
paramserver.apps     numpy scipy
paramserver.master
paramserver.coscheduling
paramserver.spilling numpy
paramserver.worker   numpy
paramserver.alone    numpy
paramserver.engine   mpi4py numpy
paramserver
simulator.paramserver    numpy
simulator.coscheduling
dataplane            mpi4py numpy
training             horovod keras mpi4py numpy onnxruntime safetensors tensorflow torch
paramserver.networks numpy
export                mlflow numpy wandb
planning
doctor               mpi4py
report.model
report.drawing       matplotlib
report.charts
report.reading
report.comparing
report.page          jinja2
report.terminal      rich
report
runtime.handoff
runtime.wire
runtime.health       mpi4py
runtime.balance      numpy
runtime.resuming
runtime.rank         mpi4py numpy
runtime.record
runtime.group        numpy
runtime.partitions        numpy
runtime.roles        mpi4py numpy
runtime.start        mpi4py
runtime.evaluating   mpi4py numpy
runtime.jobs         mpi4py numpy
runtime.simulating   numpy
runtime.kinds
runtime              mpi4py
cli                  rich
api                  numpy pandas
__main__
"""
ROOMS = {name: packages for name, *packages in (line.split() for line in TABLE.splitlines())}
MOST_LINES = 600
"""Of a module; above it look for the second idea."""
# Package -> the only places that may import it.
PLACES: dict[str, tuple[str, ...]] = {
    "tensorflow": ("training.horovod_collective", "training.keras", "models"),
    "keras": ("training.keras", "training.torch.keras_members", "models"),
    "horovod": ("training.horovod_collective",),
    "torch": ("training.torch", "models.torch", "samplers.torch_side"),
    "mpi4py": (
        "cluster",
        "comm",
        "dataplane",
        "doctor",
        "paramserver.engine.mpi_transport",
        "runtime",
        "training",
    ),
    "h5py": ("checkpoint", "data"),
    "matplotlib": ("report.drawing.shapes",),
    "jinja2": ("report.page.page",),
    "rich": ("report.terminal", "cli.watch"),
    "psutil": ("telemetry.resources.resource_use",),
    "optuna": ("searching",),
    "yaml": ("config", "telemetry.claim", "simulator.preset"),
    "pydantic": ("config", "data.operations.base", "telemetry.ledger.codec"),
    "pandas": ("api.run",),
    "mlflow": ("export.tracking",),
    "wandb": ("export.tracking",),
    "hpcbal.runtime": ("runtime", "cli", "api"),
    "hpcbal.cli": ("cli", "api", "__main__"),
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


@cache
def imports() -> Mapping[str, set[str]]:
    """Dotted names that each module imports when it runs."""
    return {name: imports_of(path) for name, path in modules().items()}


@cache
def room_of(name: str) -> str:
    """The room of a module, by its name below `hpcbal`."""
    fits = [room for room in ROOMS if within(name, (room,))]
    return max(fits, key=len) if fits else "hpcbal"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_above_it_and_its_packages(room: str) -> None:
    rooms = [*ROOMS][: [*ROOMS].index(room) + 1]
    wrong = []
    for name, imported in imports().items():
        if room_of(name) != room:
            continue
        for target in imported:
            top, _, inside = target.partition(".")
            if top == "hpcbal":
                ok = room_of(inside) in rooms
            else:
                ok = top in ROOMS[room] or top in sys.stdlib_module_names
            if not ok:
                wrong.append(f"hpcbal.{name} imports {target}")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules_of = {
        name: {inside for top, _, inside in (target.partition(".") for target in imported) if top == "hpcbal"}
        for name, imported in imports().items()
    }
    known = set(imports())
    graph = {name: {t for t in targets if t in known} - {name} for name, targets in modules_of.items()}
    while leaves := {name for name, targets in graph.items() if not targets}:
        graph = {name: targets - leaves for name, targets in graph.items() if name not in leaves}
    assert graph == {}, "these modules are in a circle, or above one"


def test_every_module_has_a_room_in_the_table() -> None:
    assert [name for name in imports() if room_of(name) == "hpcbal"] == ["__init__"]


def test_no_module_grows_beyond_its_one_idea() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize("package", PLACES)
def test_a_package_is_imported_only_in_its_places(package: str) -> None:
    wrong = [
        f"hpcbal.{name} imports {target}"
        for name, imported in imports().items()
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
output: {dir: runs/never-started}
"""
TRACE = """\
{"trace":"hpcbal","version":1,"samples_per_step":4}
{"op":"receive","resource":"downlink","bytes":1000}
{"op":"compute","resource":"worker","after":[0]}
{"step":[0,0.1]}
"""
PROBE = """\
import sys
from hpcbal.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
heavy = sorted(name for name in %r if name in sys.modules)
sys.exit(f"{heavy} imported" if heavy else code)
"""


LIGHT = (
    "--help",
    "run --help",
    "submit --help",
    "evaluate --help",
    "validate",
    "plan",
    "status",
    "report",
    "compare",
    "schema",
    "forecast",
)


def test_the_package_alone_imports_nothing() -> None:
    """A rank keeps signals only after it; Ctrl-C meanwhile would leave a traceback."""
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); before = set(sys.modules); import hpcbal; "
    )
    program += "print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().split() == ["hpcbal"]


def test_starting_mpirun_imports_no_mpi_and_nothing_that_only_ranks_need() -> None:
    """Importing MPI begins it in the process, and mpirun's own ranks need it."""
    program = "import sys, hpcbal.runtime.launch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    loaded = set(done.stdout.decode().split())
    assert loaded & {"mpi4py", "numpy", "h5py", "hpcbal.data", "hpcbal.policies", "hpcbal.control"} == set()
    assert loaded & {"hpcbal.telemetry.ledger", "hpcbal.runtime.evaluating"} == set()


@pytest.mark.parametrize("verb", LIGHT)
def test_a_light_verb_imports_nothing_heavy(verb: str, tmp_path: Path) -> None:
    from ledger_lines import a

    from hpcbal.telemetry.ledger.file import Ledger
    from hpcbal.telemetry.ledger.run import NodeFacts, RunStartedLine
    from hpcbal.telemetry.views.ensemble_table import new_status
    from hpcbal.telemetry.views.status import write_status

    config = tmp_path / "run.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    write_status(tmp_path / "status.json", new_status("a", 2))
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append(a(RunStartedLine, name="a", nodes=(NodeFacts("n", 2),)))
    directory = [str(tmp_path)]
    arguments = {
        "validate": [str(config)],
        "plan": [str(config)],
        "simulate": [str(config), "--samples", "100"],
        "status": directory,
    }
    arguments["report"] = [*directory, "--no-plots"]
    if verb == "forecast":
        (tmp_path / "trace.jsonl").write_text(TRACE, encoding="utf-8")
        arguments["forecast"] = ["--trace", str(tmp_path / "trace.jsonl"), "--bandwidth", "1Gbps"]
    if verb == "compare":
        (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
        arguments["compare"] = [*directory, "--html", str(tmp_path / "compared.html")]
    argument = arguments.get(verb, [])
    result = subprocess.run(
        [sys.executable, "-c", PROBE % ((*HEAVY, *NOT_NEEDED.get(verb, ())),), *verb.split(), *argument],
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


def test_keras_starts_quietly_in_a_rank_and_without_what_it_wraps(tmp_path: Path) -> None:
    """Its output goes to the log of the rank. scikit-learn and matplotlib are a fifth of the files that
    Keras opens; code of the user has them.
    """
    log = tmp_path / "rank.log"
    program = (
        "import logging, os, sys\n"
        "from hpcbal.processes import remember_rank\n"
        "remember_rank()\n"
        f"logging.getLogger().addHandler(logging.FileHandler({str(log)!r}))\n"
        "class Loud:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'keras':\n"
        "            os.write(2, b'from code in C\\n')\n"
        "sys.meta_path.insert(0, Loud())\n"
        "import hpcbal.training.keras\n"
        "os.write(2, b'after it')\n"
        "assert 'keras' in sys.modules and not {'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "import sklearn.base\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "after it")
    assert "from code in C" in log.read_text(encoding="utf-8")
