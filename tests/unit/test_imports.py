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
# Verbs that start without these, besides HEAVY.
NOT_NEEDED: dict[str, tuple[str, ...]] = {
    "--help": ("numpy", "pydantic", "yaml", "hpcbal.config", "hpcbal.policies", "hpcbal.control"),
    "run --help": ("numpy", "pydantic", "yaml", "hpcbal.config", "hpcbal.policies", "hpcbal.control"),
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

# Rooms from the ground up, with the other packages and the rooms that each may import. A room may import
# itself and rooms above it in this table. A module belongs to the room with the longest name that fits;
# `hpcbal` is the package's own `__init__`.
TABLE = """\
hpcbal            | -                                     | -
printable         | -                                     | -
errors            | -                                     | printable
env               | -                                     | errors
stderr            | -                                     | printable
forks             | -                                     | stderr
collector         | -                                     | -
stop_signals      | -                                     | -
user_code         | -                                     | printable errors
values            | numpy                                 | errors
cluster.layout    | -                                     | -
machines          | -                                     | errors
comm              | mpi4py numpy                          | errors stderr user_code
cluster           | mpi4py                                | errors cluster.layout
policies.batching | numpy                                 | errors
policies.samples  | numpy                                 | errors policies.batching
policies.configuring | numpy                                 | errors policies.batching
policies.grouping | numpy                                 | -
policies          | numpy                                 | errors cluster.layout policies.batching
ensembling        | numpy                                 | errors
forecast          | numpy                                 | errors
paramserver.contract | numpy                                 | errors user_code values
paramserver.store | numpy                                 | errors machines paramserver.contract
control           | -                                     | errors values cluster.layout machines
                  |                                       | policies.batching policies
telemetry.files   | -                                     | errors
telemetry.host    | -                                     | hpcbal
telemetry.streams | -                                     | printable errors values telemetry.files
telemetry.ledger  | pydantic pydantic_core                | errors values policies control telemetry.files
telemetry.views   | -                                     | printable errors values control telemetry.files
                  |                                       | telemetry.host telemetry.ledger
telemetry.claim   | yaml                                  | printable errors stderr telemetry.files
                  |                                       | telemetry.host telemetry.ledger
telemetry         | -                                     | -
checkpoint        | h5py numpy                            | errors values telemetry.files
speed_models      | keras numpy statsmodels               | hpcbal env errors policies.batching
simulator         | numpy yaml                            | errors collector values cluster.layout
                  |                                       | policies.batching policies control
                  |                                       | telemetry.ledger
config.source     | yaml                                  | printable errors
config.schema     | pydantic pydantic_core                | values policies control
config.contract   | -                                     | config.source
config.balance    | -                                     | policies.batching config.schema
config.checks     | pydantic                              | printable errors values policies.batching
                  |                                       | config.source config.schema config.contract
                  |                                       | config.balance
config.listed     | -                                     | config.source config.schema config.contract
config.messages   | pydantic pydantic_core                | errors config.source config.schema config.checks
                  |                                       | config.listed
config.expand     | pydantic                              | config.source config.schema config.checks
                  |                                       | config.listed
config.imports    | -                                     | env errors user_code config.source
config.kinds      | pydantic                              | errors config.source config.schema config.checks
                  |                                       | config.listed config.expand
config.load       | pydantic pydantic_core yaml           | errors collector config.source config.schema
                  |                                       | config.messages config.imports config.kinds
config.submission | pydantic yaml                         | errors config.source config.schema config.load
config            | -                                     | config.schema config.imports config.kinds
                  |                                       | config.load
config.scheduling | -                                     | control config.schema config.balance
models            | keras numpy tensorflow                | errors
data              | PIL h5py numpy sklearn                | errors env forks user_code values policies.samples
                  |                                       | policies config.contract config.imports
paramserver.apps  | numpy scipy                           | errors paramserver.contract data
paramserver.machine | -                                     | errors values machines comm control policies
paramserver.sharing | -                                     | comm policies.grouping paramserver.machine
paramserver.spilling | numpy                                 | errors policies.grouping paramserver.contract
                  |                                       | paramserver.sharing
paramserver.worker | numpy                                 | errors comm paramserver.contract
                  |                                       | paramserver.store paramserver.machine
                  |                                       | paramserver.sharing
paramserver.alone | numpy                                 | errors comm paramserver.contract
                  |                                       | paramserver.store paramserver.machine
                  |                                       | paramserver.worker
paramserver.engine | mpi4py numpy                          | errors machines comm
                  |                                       | policies.grouping paramserver.contract
                  |                                       | paramserver.store paramserver.machine
                  |                                       | paramserver.sharing paramserver.spilling
                  |                                       | paramserver.worker
paramserver       | -                                     | -
simulator.serving | numpy                                 | errors collector comm paramserver.contract
                  |                                       | paramserver.store paramserver.machine
                  |                                       | paramserver.sharing paramserver.engine
                  |                                       | paramserver.worker
simulator.sharing | -                                     | errors collector values comm policies.grouping
                  |                                       | paramserver.contract
                  |                                       | paramserver.store paramserver.machine
                  |                                       | paramserver.sharing paramserver.worker
                  |                                       | simulator.serving
dataplane         | mpi4py numpy                          | errors values comm telemetry.host data
training          | horovod keras mpi4py numpy tensorflow | errors env forks user_code values comm policies
                  |                                       | config.source config.schema config.contract
                  |                                       | config.imports models
paramserver.networks | numpy                                 | errors values config.schema
                  |                                       | paramserver.contract paramserver.apps training
export            | -                                     | errors telemetry.files telemetry.views telemetry
                  |                                       | checkpoint config data training
planning          | -                                     | errors cluster.layout cluster policies.configuring
                  |                                       | policies control telemetry.files telemetry.ledger
                  |                                       | telemetry simulator config.balance config
                  |                                       | config.scheduling data dataplane forecast
report.model      | -                                     | telemetry.views
report.drawing    | matplotlib                            | printable
report.charts     | -                                     | values telemetry.views report.model report.drawing
report.reading    | -                                     | errors telemetry.files telemetry.ledger
                  |                                       | telemetry.views report.model
report.comparing  | -                                     | errors values telemetry.files telemetry.views
                  |                                       | config report.model report.reading
report.page       | jinja2                                | printable values telemetry.files telemetry.views
                  |                                       | report.model report.drawing report.charts
                  |                                       | report.comparing
report            | -                                     | report.model report.reading report.page
runtime.handoff   | -                                     | errors env stderr stop_signals cluster
                  |                                       | telemetry.files telemetry.host telemetry.ledger
                  |                                       | telemetry.views telemetry checkpoint
                  |                                       | config.submission config
runtime.wire      | -                                     | comm control telemetry.streams telemetry.ledger
                  |                                       | dataplane
runtime.health    | mpi4py numpy                          | printable errors stderr stop_signals comm cluster
                  |                                       | telemetry.files telemetry.host
                  |                                       | runtime.handoff runtime.wire
runtime.balance   | numpy                                 | errors env values cluster policies.batching
                  |                                       | policies.samples control telemetry.files
                  |                                       | telemetry.host speed_models config.schema
                  |                                       | config.balance config dataplane training
runtime.resuming  | -                                     | errors cluster.layout data policies control
                  |                                       | telemetry.files telemetry.ledger telemetry.views
                  |                                       | telemetry checkpoint config config.scheduling
                  |                                       | runtime.handoff
runtime.rank      | mpi4py numpy                          | errors values comm cluster control
                  |                                       | telemetry.streams config data dataplane
                  |                                       | runtime.handoff runtime.wire runtime.health
runtime.record    | -                                     | printable errors env cluster.layout cluster
                  |                                       | control telemetry.files telemetry.streams
                  |                                       | telemetry.ledger telemetry.views telemetry
                  |                                       | checkpoint simulator config.checks config
                  |                                       | dataplane report runtime.handoff runtime.wire
                  |                                       | runtime.resuming
runtime.group     | numpy                                 | errors forks user_code values comm cluster data
                  |                                       | policies control telemetry.streams
                  |                                       | telemetry.ledger telemetry checkpoint
                  |                                       | config.schema config.imports config dataplane
                  |                                       | training runtime.wire runtime.balance runtime.rank
runtime.parts     | numpy                                 | errors values comm cluster policies.samples
                  |                                       | policies data dataplane training runtime.wire
                  |                                       | runtime.balance runtime.rank runtime.group
runtime.roles     | mpi4py numpy                          | errors values comm cluster policies.batching
                  |                                       | control telemetry.streams telemetry.ledger
                  |                                       | telemetry checkpoint simulator config dataplane
                  |                                       | training runtime.handoff runtime.wire
                  |                                       | runtime.health runtime.balance runtime.rank
                  |                                       | runtime.record runtime.group runtime.parts
runtime.start     | mpi4py                                | errors env forks comm cluster control telemetry
                  |                                       | config.balance config.checks config
                  |                                       | config.scheduling dataplane training
                  |                                       | runtime.resuming runtime.rank runtime.record
                  |                                       | runtime.group runtime.parts runtime.roles
runtime.evaluating | mpi4py numpy                          | printable errors values comm ensembling
                  |                                       | telemetry.files telemetry.views telemetry
                  |                                       | checkpoint config.source config.schema config data
                  |                                       | dataplane training runtime.handoff runtime.group
runtime.paramserver | numpy                                 | printable errors env stderr forks user_code
                  |                                       | values comm cluster policies.configuring
                  |                                       | paramserver.contract paramserver.store
                  |                                       | telemetry.files telemetry.host telemetry.ledger
                  |                                       | telemetry.streams
                  |                                       | telemetry.views telemetry checkpoint
                  |                                       | config.contract config paramserver.machine
                  |                                       | paramserver.engine forecast planning
                  |                                       | paramserver.worker
                  |                                       | runtime.handoff
                  |                                       | runtime.wire runtime.health runtime.rank
                  |                                       | runtime.record
runtime.sharing   | mpi4py                                | printable errors stderr values comm
                  |                                       | cluster policies.grouping paramserver.contract
                  |                                       | paramserver.store telemetry.files telemetry.host
                  |                                       | telemetry.ledger telemetry.views telemetry config
                  |                                       | paramserver.machine paramserver.sharing env
                  |                                       | paramserver.spilling
                  |                                       | paramserver.engine runtime.handoff runtime.wire
                  |                                       | paramserver.worker
                  |                                       | runtime.health runtime.rank runtime.record
                  |                                       | runtime.paramserver
runtime.simulating | numpy                                 | errors paramserver.contract paramserver.store
                  |                                       | config paramserver.machine paramserver.worker
                  |                                       | simulator.serving planning runtime.paramserver
                  |                                       | simulator.sharing runtime.sharing
runtime           | mpi4py                                | printable errors stderr forks comm cluster
                  |                                       | telemetry.streams telemetry.views telemetry
                  |                                       | config.balance config data runtime.handoff
                  |                                       | runtime.health runtime.resuming runtime.rank
                  |                                       | runtime.start runtime.evaluating
                  |                                       | runtime.paramserver runtime.sharing
cli               | -                                     | hpcbal printable errors env stderr collector
                  |                                       | cluster control telemetry.files telemetry.views
                  |                                       | forecast simulator config.schema config.checks
                  |                                       | config.submission config config.scheduling
                  |                                       | simulator.sharing simulator.serving export
                  |                                       | planning report.model
                  |                                       | report.drawing report.charts report.reading
                  |                                       | report.comparing report.page report
                  |                                       | runtime.handoff
                  |                                       | runtime.evaluating runtime.paramserver
                  |                                       | runtime.simulating runtime
__main__          | -                                     | errors stderr stop_signals cli
"""


def rooms_of(table: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Room -> (other packages, rooms of hpcbal) that it may import."""
    rooms: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    room = ""
    for line in table.splitlines():
        name, packages, targets = (column.split() for column in line.split("|"))
        room = name[0] if name else room
        before = rooms.get(room, ((), ()))
        rooms[room] = (
            (*before[0], *(word for word in packages if word != "-")),
            (*before[1], *(word for word in targets if word != "-")),
        )
    return rooms


ROOMS = rooms_of(TABLE)
MOST_LINES = 600
"""Of a module; above it look for the second idea."""
# Package -> the only places that may import it.
PLACES: dict[str, tuple[str, ...]] = {
    "tensorflow": (
        "training.tensorflow_backend",
        "training.tensorflow_replica",
        "training.device_input",
        "training.predicting",
        "training.tensorflow_errors",
        "training.traced_exchange",
        "training.traced_step",
        "training.frozen_layers",
        "training.loss_scaling",
        "training.tensorflow_setup",
        "training.vector_replica",
        "training.horovod_collective",
        "models",
    ),
    "keras": (
        "training.vector_replica",
        "training.tensorflow_backend",
        "training.tensorflow_replica",
        "training.predicting",
        "training.keras_model",
        "training.keras_parts",
        "training.frozen_layers",
        "training.loss_scaling",
        "training.metric_states",
        "training.objective",
        "training.plain_model",
        "models",
        "speed_models.networks",
    ),
    "horovod": ("training.horovod_collective",),
    "mpi4py": ("cluster", "comm", "dataplane", "paramserver.engine.mpi_transport", "runtime", "training"),
    "h5py": ("checkpoint", "data"),
    "matplotlib": ("report.drawing.png",),
    "jinja2": ("report.page.document",),
    "psutil": ("telemetry.host.resource_use",),
    "statsmodels": ("speed_models.arima",),
    "yaml": ("config", "telemetry.claim", "simulator.preset"),
    "pydantic": ("config", "telemetry.ledger.codec"),
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


def room_of(name: str) -> str:
    """The room of a module, by its name below `hpcbal`."""
    fits = [room for room in ROOMS if within(name, (room,))]
    return max(fits, key=len) if fits else "hpcbal"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    packages, rooms = ROOMS[room]
    wrong = []
    for name, imported in IMPORTS.items():
        if room_of(name) != room:
            continue
        for target in imported:
            top = target.partition(".")[0]
            if top == "hpcbal":
                ok = room_of(target.partition(".")[2]) in (room, *rooms)
            else:
                ok = top in packages or top in sys.stdlib_module_names
            if not ok:
                wrong.append(f"hpcbal.{name} imports {target}")
    assert wrong == []


def test_rooms_import_downwards_only_so_that_there_is_no_circle() -> None:
    order = list(ROOMS)
    upwards = [
        (room, target)
        for room, (_, rooms) in ROOMS.items()
        for target in rooms
        if order.index(target) >= order.index(room)
    ]
    assert upwards == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules_of = {
        name: {inside for top, _, inside in (target.partition(".") for target in imported) if top == "hpcbal"}
        for name, imported in IMPORTS.items()
    }
    known = set(IMPORTS)
    graph = {name: {t for t in targets if t in known} - {name} for name, targets in modules_of.items()}
    while leaves := {name for name, targets in graph.items() if not targets}:
        graph = {name: targets - leaves for name, targets in graph.items() if name not in leaves}
    assert graph == {}, "these modules are in a circle, or above one"


def test_a_room_is_allowed_nothing_that_it_does_not_use() -> None:
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, imported in IMPORTS.items():
        for target in imported:
            top, _, inside = target.partition(".")
            used[room_of(name)].add(room_of(inside) if top == "hpcbal" else top)
    unused = {room: {*packages, *rooms} - used[room] for room, (packages, rooms) in ROOMS.items()}
    assert {room: names for room, names in unused.items() if names} == {}


def test_every_module_has_a_room_in_the_table() -> None:
    assert [name for name in IMPORTS if room_of(name) == "hpcbal"] == ["__init__"]


def test_no_module_grows_beyond_its_one_idea() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


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
    "evaluate --help",
    "validate",
    "plan",
    "status",
    "report",
    "compare",
    "schema",
    "forecast",
)


@pytest.mark.parametrize("verb", LIGHT)
def test_a_light_verb_imports_nothing_heavy(verb: str, tmp_path: Path) -> None:
    from ledger_lines import a

    from hpcbal.telemetry.ledger import Ledger, NodeFacts, RunStartedLine
    from hpcbal.telemetry.views.ensemble_status import new_status
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
