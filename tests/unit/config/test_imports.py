"""Import paths: the run loads them with clear errors, `validate` looks them up without running code."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcbal.config import load_config, load_object
from hpcbal.config.imports import add_import_roots, hidden_modules
from hpcbal.errors import ConfigError, ExitCode, InputError, UserCodeError

MODULE = '''\
"""A user's module that must not run while a configuration is validated."""
from os.path import join as borrowed
from {package}.inner import deep
import json
raise_here = {effect}

def model(input_shape, num_classes, depth, *, width=16):
    return None

def dataset(folder="x"):
    return None

def flexible(input_shape, num_classes, **options):
    return None

@staticmethod
def decorated(x):
    return None

class Net:
    @classmethod
    def build(cls, input_shape, num_classes, depth):
        return cls()

class Layered(Net):
    def __init__(self, input_shape, num_classes, depth=2):
        pass

class Dynamic(Net, metaclass=type):
    def __init__(self, width):
        pass

@exports.keras_export(["a"])
def hub(top=True, weights="all", shape=None, classes=9, classifier_activation="softmax"):
    return None

def cnn(width=16, dropout=0.0):
    return None

def swapped(num_classes, input_shape):
    return None

def by_keyword(*, input_shape, num_classes):
    return None

def anything(*args, **kwargs):
    return None

def nearly(shape=(3,), classes=2, width=1):
    return None

table, other = {{}}, 3
typed: int = 3
sizes = [8, 16]
later = None
changed = 1
del changed
ready = None
ready = json

async def later_on(input_shape, num_classes):
    return None

def steps(input_shape, num_classes):
    if num_classes:
        yield 3

def has_inner(input_shape, num_classes):
    def inner():
        yield 3
    return [*inner()]

@exports.contextmanager
def managed(path):
    yield path

def set_later():
    global later
    later = json

if table is None:
    def conditional(input_shape, num_classes):
        return None
try:
    import missing_thing
except ImportError:
    fallback = None
number = 7
'''


@pytest.fixture(autouse=True)
def restore_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a test adds to the path and to the loaded modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path) -> str:
    """A package beside the configuration whose modules raise on import."""
    name = f"user_{tmp_path.name}"
    directory = tmp_path / name
    directory.mkdir()
    (directory / "__init__.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    (directory / "nets.py").write_text(MODULE.format(package=name, effect="1 / 0"), encoding="utf-8")
    (directory / "inner.py").write_text(
        "def deep(input_shape, num_classes, growth=1):\n    pass\n", encoding="utf-8"
    )
    (directory / "relative.py").write_text(
        "from . import inner\nfrom .inner import deep as deeper\nfrom .nets import sizes\n", encoding="utf-8"
    )
    (directory / "lazy.py").write_text("def __getattr__(name):\n    pass\n", encoding="utf-8")
    (directory / "star.py").write_text("from os import *\n", encoding="utf-8")
    (directory / "broken.py").write_text("def f(:\n", encoding="utf-8")
    return name


def validate(tmp_path: Path, model: str, args: str = "{}", data: str = "{}") -> list[str]:
    """Problems of a configuration with this model; none if it is valid."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "dnns:\n"
        f"  - name: a\n    model: {model}\n    args: {args}\n    batch_size: 1\n    stop: {{max_epochs: 1}}\n"
        "    optimizer: {name: sgd, learning_rate: 1}\n"
        f"data: {data}\n",
        encoding="utf-8",
    )
    try:
        load_config(path, check_imports=True)
    except ConfigError as error:
        return [line.replace(f"{tmp_path}/", "") for line in error.problems]
    return []


@pytest.mark.parametrize(
    ("where", "args"),
    [
        ("nets:model", "{depth: 3, width: 4}"),
        ("nets:flexible", "{anything: 3}"),
        ("nets:decorated", "{anything: 3}"),
        ("nets:Net", "{}"),
        ("nets:Net.build", "{depth: 1}"),
        ("nets:Layered", "{depth: 1}"),
        ("nets:Dynamic", "{anything: 1}"),
        ("nets:anything", "{anything: 1}"),
        ("nets:nearly", "{width: 3}"),
        ("nets:borrowed", "{}"),
        ("nets:deep", "{growth: 2}"),
        ("nets:table", "{}"),
        ("nets:later", "{}"),
        ("nets:changed", "{}"),
        ("nets:ready", "{}"),
        ("nets:has_inner", "{}"),
        ("nets:managed", "{}"),
        ("nets:conditional", "{}"),
        ("nets:fallback", "{}"),
        ("nets:missing_thing", "{}"),
        ("nets:json", "{}"),
        ("relative:deeper", "{growth: 3}"),
        ("relative:inner.deep", "{}"),
        ("lazy:whatever", "{}"),
        ("star:whatever", "{}"),
    ],
)
def test_a_name_that_the_module_defines_is_found_without_importing(
    tmp_path: Path, package: str, where: str, args: str
) -> None:
    assert validate(tmp_path, f"{package}.{where}", args) == []
    assert not any(name.startswith(package) for name in sys.modules)


@pytest.mark.parametrize(
    ("where", "args", "message"),
    [
        (
            "nets:modle",
            "{}",
            "run.yaml:3: dnns.0.model: got '{p}.nets:modle': {p}/nets.py defines no 'modle' (did you",
        ),
        (
            "net:model",
            "{}",
            "run.yaml:3: dnns.0.model: got '{p}.net:model': no module '{p}.net'; put it beside",
        ),
        ("broken:f", "{}", "run.yaml:3: dnns.0.model: got '{p}.broken:f': {p}/broken.py:1: syntax error:"),
        (
            "relative:deepr",
            "{}",
            "run.yaml:3: dnns.0.model: got '{p}.relative:deepr': {p}/relative.py defines no",
        ),
        (
            "nets:model",
            "{dpth: 3}",
            "run.yaml:4: dnns.0.args.dpth: {p}.nets:model has no argument 'dpth' (did you mean "
            "'depth'?), allowed: depth, width",
        ),
        ("nets:model", "{}", "run.yaml:4: dnns.0.args: {p}.nets:model needs the argument depth"),
        (
            "nets:model",
            "{depth: 1, num_classes: 3}",
            "run.yaml:4: dnns.0.args.num_classes: {p}.nets:model has no",
        ),
        (
            "nets:flexible",
            "{num_classes: 3}",
            "run.yaml:4: dnns.0.args.num_classes: {p}.nets:flexible has no",
        ),
        (
            "nets:Layered",
            "{dept: 3}",
            "run.yaml:4: dnns.0.args.dept: {p}.nets:Layered has no argument 'dept' (did you mean 'depth'?), "
            "allowed: depth",
        ),
        (
            "nets:cnn",
            "{width: 8}",
            "run.yaml:3: dnns.0.model: {p}.nets:cnn is cnn(width=16, dropout=0.0), allowed: a callable that "
            "takes input_shape and num_classes first; for example cnn(input_shape, num_classes, width=16, ",
        ),
        (
            "nets:hub",
            "{}",
            "run.yaml:3: dnns.0.model: {p}.nets:hub is hub(top=True, weights='all', shape=None, classes=9, "
            "classifier_activation='softmax'), allowed: a callable that takes input_shape and num_classes "
            "first; name a function of your own: def hub(input_shape, num_classes): return hub("
            "shape=input_shape, classes=num_classes, weights=None, classifier_activation=None)",
        ),
        ("nets:swapped", "{}", "run.yaml:3: dnns.0.model: {p}.nets:swapped is swapped(num_classes, "),
        ("nets:by_keyword", "{}", "run.yaml:3: dnns.0.model: {p}.nets:by_keyword is by_keyword("),
        (
            "nets:number",
            "{}",
            "run.yaml:3: dnns.0.model: got '{p}.nets:number': {p}/nets.py: 'number' is 7, allowed: a "
            "function or class",
        ),
        ("nets:typed", "{}", "run.yaml:3: dnns.0.model: got '{p}.nets:typed': {p}/nets.py: 'typed' is 3, "),
        (
            "relative:sizes",
            "{}",
            "run.yaml:3: dnns.0.model: got '{p}.relative:sizes': {p}/nets.py: 'sizes' is [8",
        ),
        (
            "nets:later_on",
            "{}",
            "run.yaml:3: dnns.0.model: got '{p}.nets:later_on': {p}/nets.py: 'later_on' is an ",
        ),
        ("nets:steps", "{}", "run.yaml:3: dnns.0.model: got '{p}.nets:steps': {p}/nets.py: 'steps' is a gen"),
        (
            "relative:deeper",
            "{grwth: 3}",
            "run.yaml:4: dnns.0.args.grwth: {p}.relative:deeper has no argument",
        ),
    ],
)
def test_a_wrong_path_or_argument_is_reported_without_importing(
    tmp_path: Path, package: str, where: str, args: str, message: str
) -> None:
    found = validate(tmp_path, f"{package}.{where}", args)
    assert found[0].startswith(message.replace("{p}", package)), found
    assert not any(name.startswith(package) for name in sys.modules)


def test_the_dataset_is_looked_up_too(tmp_path: Path, package: str) -> None:
    model, args = f"{package}.nets:flexible", "{}"
    assert (
        validate(tmp_path, model, args, f"{{dataset: '{package}.nets:dataset', args: {{folder: y}}}}") == []
    )
    found = validate(tmp_path, model, args, f"{{dataset: '{package}.nets:dataset', args: {{foldr: y}}}}")
    assert "has no argument 'foldr' (did you mean 'folder'?), allowed: folder" in found[0]
    found = validate(tmp_path, model, args, "{args: {x: 1}}")
    assert found == ["run.yaml:8: data.args.x: hpcbal.data:digits has no argument 'x', allowed: none"]


@pytest.mark.parametrize("path", ["nets:", "nets:a:b", "ne-ts:model", ":model", "nets:model."])
def test_what_is_no_import_path_is_reported_once(tmp_path: Path, package: str, path: str) -> None:
    (problem,) = validate(tmp_path, f"'{package}.{path}'")
    assert "allowed: an import path" in problem


def test_unknown_packages_are_reported(tmp_path: Path) -> None:
    assert "no module 'no_such_package_here'" in validate(tmp_path, "no_such_package_here.x:f")[0]
    assert "no module 'json.nothing'" in validate(tmp_path, "json.nothing:f")[0]


def test_a_module_that_was_unknown_is_found_once_its_folder_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no module 'late_module'" in validate(tmp_path, "late_module:f")[0]
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "late_module.py").write_text("def f(input_shape, num_classes): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path / "later"))
    assert validate(tmp_path, "late_module:f") == []


def test_functions_in_c_are_held_to_their_signature_where_they_have_one(tmp_path: Path) -> None:
    assert validate(tmp_path, "builtins:max") == []
    assert "math:sqrt is sqrt(x), allowed: a callable that" in validate(tmp_path, "math:sqrt")[0]


def test_load_object_finds_functions_and_methods() -> None:
    import json

    assert load_object("json:dumps") is json.dumps
    assert load_object("json.decoder:JSONDecoder.decode") is json.JSONDecoder.decode


def module_with(directory: Path, name: str, text: str) -> str:
    (directory / f"{name}.py").write_text(text, encoding="utf-8")
    add_import_roots(directory / "run.yaml")
    return name


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("json", "json: not an import path, allowed: package.module:callable"),
        ("json:", "json:: not an import path, allowed: package.module:callable"),
        (
            "no_such_module_x:f",
            "no_such_module_x:f: no module 'no_such_module_x'; put it beside the configuration",
        ),
        ("json.nothing:f", "json.nothing:f: no module 'json.nothing'; put it beside the configuration"),
        ("json:dmps", "json:dmps: json ("),
        ("json:decoder", "json:decoder is of type module, allowed: a function or class"),
    ],
)
def test_load_object_reports_what_is_wrong(path: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_object(path)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == ExitCode.WRONG_INPUT


def test_a_misspelt_name_gets_a_hint() -> None:
    with pytest.raises(InputError, match=r"has no 'dmps' \(did you mean 'dumps'\?\)"):
        load_object("json:dmps")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise ValueError('no\\n  good')\n", r"failed: .*_0\.py:2: ValueError: no good$"),
        ("def f():\n    1 / 0\nf()\n", r"failed: .*_1\.py:2: ZeroDivisionError: division"),
        (
            "import no_such_dependency_x\n",
            r"failed: .*_2\.py:1: ModuleNotFoundError: No module named 'no_such_dependency_x'$",
        ),
        ("import sys\nsys.exit(3)\n", r"failed: .*_3\.py:2: SystemExit: 3$"),
        ("def f(:\n", r"failed: SyntaxError: invalid syntax"),
    ],
)
def test_an_exception_from_the_users_module_is_reported_in_one_line(
    tmp_path: Path, text: str, message: str, request: pytest.FixtureRequest
) -> None:
    index = [0, 1, 2, 3, 4][int(request.node.callspec.indices["text"])]
    name = module_with(tmp_path, f"raises_{index}", text)
    with pytest.raises(UserCodeError, match=f"{name}:f: importing {name} {message}") as caught:
        load_object(f"{name}:f")
    assert "\n" not in str(caught.value)


def test_modules_beside_the_configuration_come_before_those_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for directory, value in ((here, 1), (there, 2)):
        directory.mkdir()
        (directory / "both_places.py").write_text(f"def f():\n    return {value}\n", encoding="utf-8")
    monkeypatch.chdir(there)
    add_import_roots(here / "run.yaml")
    add_import_roots(here / "run.yaml")
    assert load_object("both_places:f")() == 1
    assert sys.path[-2:] == [str(here), str(there)]
    assert sys.path.count(str(here)) == 1


def test_modules_of_pythonpath_are_named_only_if_they_come_after_the_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text("dnns: []", encoding="utf-8")
    first, last = tmp_path / "installed", tmp_path / "own"
    for folder in (first, last):
        folder.mkdir()
        (folder / "json.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(first), *sys.path, str(last)])
    monkeypatch.setenv("PYTHONPATH", f"{first}{os.pathsep}{last}")
    (warning,) = hidden_modules(tmp_path / "run.yaml")
    assert warning.startswith(f"{last / 'json.py'}: hidden by the module of the same name in {json.__file__}")


def test_a_module_named_as_a_librarys_does_not_replace_it_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run.yaml").write_text("dnns: []", encoding="utf-8")
    for name in ("json.py", "h5py.py", "nets_of_mine.py", "time.py", "old.trace.py"):
        (tmp_path / name).write_text("", encoding="utf-8")
    add_import_roots(tmp_path / "run.yaml")
    warnings = hidden_modules(tmp_path / "run.yaml")
    assert [Path(line.partition(":")[0]).name for line in warnings] == ["h5py.py", "json.py", "time.py"]
    assert "if your code imports it, give the file another name" in warnings[1]
    found = importlib.machinery.PathFinder.find_spec("json")
    assert found is not None
    assert found.origin == json.__file__


def test_a_folder_is_not_taken_for_a_library_that_others_look_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras imports jax and orbax if they are there; neither is installed."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("jax", "orbax", "nets_of_mine"):
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    assert importlib.machinery.PathFinder.find_spec("jax") is None
    (tmp_path / "run.yaml").write_text("dnns: []", encoding="utf-8")
    (tmp_path / "jax").mkdir()
    for name in ("orbax.py", "h5py.py", "nets_of_mine.py"):
        (tmp_path / name).write_text("", encoding="utf-8")
    add_import_roots(tmp_path / "run.yaml")
    for name in ("jax", "orbax"):
        assert importlib.util.find_spec(name) is None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    importlib.import_module("nets_of_mine")
    assert str(tmp_path) not in str(importlib.import_module("h5py").__file__)
    warnings = hidden_modules(tmp_path / "run.yaml")
    assert [Path(line.partition(":")[0]).name for line in warnings] == ["h5py.py", "orbax.py"]
    assert "libraries would take it for one that they look for" in warnings[1]


@pytest.mark.parametrize(
    ("callback", "instead"),
    [
        ("keras.callbacks:EarlyStopping", "stop.patience"),
        ("tensorflow.keras.callbacks:Callback", "of your own"),
    ],
)
def test_callbacks_of_keras_are_refused_with_what_to_use_instead(
    tmp_path: Path, callback: str, instead: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 8, stop: {max_epochs: 3}}\n"
        f"dnns:\n  - {{name: a, model: 'hpcbal.models:softmax', callbacks: ['{callback}']}}\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, check_imports=True)
    (problem,) = caught.value.problems
    assert f"got '{callback}', a class for Keras' fit(), allowed: a callable that gets an EpochEnd" in problem
    assert instead in problem


def test_keras_computes_with_tensorflow_whatever_the_user_has_set_and_logs_nothing(tmp_path: Path) -> None:
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"backend": "jax"}')
    lines = "import keras, tensorflow as tf", "tf.keras.layers", "print(keras.backend.backend())"
    own = "\n".join(lines)
    (tmp_path / "own.py").write_text(own)
    before = "from hpcbal.config import add_import_roots; add_import_roots('run.yaml'); "
    set_by_user = {"KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1"}
    # Keras itself, which takes seconds, is imported once: the variable decides, whatever keras.json says.
    for variables, code in (
        ({}, "import os; print(os.environ['KERAS_BACKEND'])"),
        (set_by_user, "import own"),
    ):
        mine = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
        others = {name: value for name, value in os.environ.items() if name not in mine}
        done = subprocess.run(
            [sys.executable, "-c", before + code],
            cwd=tmp_path,
            env={**others, "HOME": str(tmp_path), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("tensorflow\n", "")  # not a line of TensorFlow's log
