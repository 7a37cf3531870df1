"""The command line as a whole: verbs, exit codes, and errors without tracebacks."""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path

import pytest

import hpcbal
import hpcbal.__main__ as program
from hpcbal.cli import main
from hpcbal.cli import validate as validate_verb
from hpcbal.errors import MOST_PROBLEMS, CheckpointError, ExitCode, HpcbalError, InputError
from hpcbal.runtime.handoff.launch_dir import RunRequest, load_requested

GOOD = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}
dnns: [{name: a, model: "hpcbal.models:softmax"}, {name: b, model: "hpcbal.models:softmax"}]
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(GOOD, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "words",
    [["status"], ["cancel"], ["report"], ["evaluate"], ["compare"], ["stop", "a"], ["export", "--to=x"]],
)
def test_a_path_that_cannot_be_looked_at_is_one_sentence(words: list[str], capsys: Capture) -> None:
    assert main([words[0], "x" * 300, *words[1:]]) == ExitCode.WRONG_INPUT
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].endswith(": File name too long; give another path")


def test_an_error_of_the_system_that_is_no_mistake_of_the_user_keeps_its_traceback(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise OSError(5, "Input/output error", "x")

    monkeypatch.setattr(validate_verb, "run", run)
    with pytest.raises(OSError, match="Input/output error"):
        main(["validate", str(config)])


@pytest.mark.parametrize("verb", ["run", "validate", "plan", "profile", "status", "schema"])
def test_every_verb_has_help(verb: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    assert f"usage: hpcbal {verb}" in capsys.readouterr().out


def test_the_version_is_printed(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"hpcbal {hpcbal.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [[], ["train"], ["plan"], ["plan", "c.yaml", "--nodes", "0"], ["run", "c", "--log-level", "loud"]],
)
def test_wrong_arguments_end_with_code_2(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == ExitCode.WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: hpcbal")


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("simulate", ["--gpus", "4"]),
        ("simulate", ["--gpus-per-node=4"]),
        ("plan", ["--gpus-per-node=4"]),
    ],
)
def test_the_options_of_other_tools_for_slots_are_refused_with_ours(
    verb: str, given: list[str], capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "c.yaml", *given])
    assert end.value.code == ExitCode.WRONG_INPUT
    meant = given[0].split("=")[0].replace("gpus", "slots")
    assert f"(did you mean '{meant}'?)" in capsys.readouterr().err


def test_a_valid_configuration_is_reported_on_stdout(config: Path, capsys: Capture) -> None:
    assert main(["validate", str(config)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{config}: valid, 2 DNNs, output in runs/run\n", "")


def test_problems_go_to_stderr_with_code_2(config: Path, capsys: Capture) -> None:
    assert main(["validate", str(config), "--set", "seed=-1", "--set", "alpha=2"]) == 2
    captured = capsys.readouterr()
    first, second, last = captured.err.splitlines()
    assert first.startswith("--set seed=-1: got -1, allowed: a whole number")
    assert second.startswith("--set alpha=2: unknown key (did you mean 'schedule.alpha'?)")
    assert last == "hpcbal: 2 problems in the configuration"
    assert captured.out == ""


def test_problems_are_data_with_json(config: Path, capsys: Capture) -> None:
    assert main(["validate", str(config), "--json", "--set", "seed=-1"]) == 2
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert (answer["valid"], len(answer["problems"]), captured.err) == (False, 1, "")


IN_VAIN = "--set balance.predictor=narx: got 'narx', which has an effect only with policy: lb-bsp-cpu"
RATES = ["--set", "backend={name: emulated, rates: {a: {1: 9}, b: {1: 9}}}", "--set", "slots.per_node=2"]


@pytest.mark.parametrize("command", [["validate"], ["plan", *RATES], ["simulate", "--samples", "40", *RATES]])
def test_keys_without_effect_cause_warnings_and_keep_the_exit_code(
    config: Path, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *options = command
    assert main([verb, str(config), *options, "--set", "balance.predictor=narx"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == f"warning: {IN_VAIN}"
    assert captured.out


FIXED = ["--set", "balance={policy: fixed, shares: [3, 2, 1]}"]


def test_only_validate_warns_of_weights_for_more_slots_than_a_node_has(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The number of nodes is not in the file; `plan` and `run` know it, and refuse too few."""
    monkeypatch.chdir(tmp_path)
    assert main(["validate", str(config), *FIXED, "--set", "slots.per_node=2"]) == 0
    message = "got 3 weights with slots.per_node 2; a run on fewer than 2 nodes will be refused"
    assert capsys.readouterr().err == f"warning: --set {FIXED[1]}: balance.shares: {message}\n"
    for slots in ("3", "auto"):
        assert main(["validate", str(config), *FIXED, "--set", f"slots.per_node={slots}"]) == 0
        assert capsys.readouterr().err == ""
    assert main(["plan", str(config), *RATES, *FIXED, "--nodes", "2"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["plan", str(config), *RATES, *FIXED]) == 2


def test_warnings_about_weights_name_their_place_and_only_dnns_that_use_them(
    config: Path, capsys: Capture
) -> None:
    text = GOOD.replace("name: a,", "name: a, balance: fixed, shares: [3, 2, 1],")
    config.write_text(text + "balance: {shares: [1, 2]}\nslots: {per_node: 1}\n", encoding="utf-8")
    assert main(["validate", str(config), "--set", "dnns.b.balance=fixed"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"warning: {config}:2: dnns.0.shares: got 3 weights with slots.per_node 1; ")
    assert second.startswith(f"warning: {config}:3: balance.shares: got 2 weights with slots.per_node 1; ")
    assert main(["validate", str(config), "--set", "dnns.a.balance=even"]) == 0
    assert "slots.per_node" not in capsys.readouterr().err


def test_warnings_are_data_with_json(config: Path, capsys: Capture) -> None:
    assert main(["validate", str(config), "--json", "--set", "balance.predictor=narx"]) == 0
    captured = capsys.readouterr()
    assert (json.loads(captured.out)["warnings"], captured.err) == ([IN_VAIN], "")
    assert main(["validate", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


@pytest.mark.parametrize(
    ("is_rank", "launched_by", "num_warnings"), [(False, None, 1), (True, None, 1), (True, "batch", 0)]
)
def test_a_run_warns_once_with_any_launcher(
    config: Path,
    is_rank: bool,
    launched_by: str | None,
    num_warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.delenv("HPCBAL_LAUNCHED", raising=False)
    if launched_by is not None:
        monkeypatch.setenv("HPCBAL_LAUNCHED", launched_by)
    request = RunRequest(config, ("balance.shares=[2, 1]",))
    assert load_requested(request, is_rank=is_rank).balance.shares == (2.0, 1.0)
    assert capsys.readouterr().err.count("warning: --set balance.shares=[2, 1]: got [2, 1]") == num_warnings


def test_a_valid_configuration_with_json_is_written_out(config: Path, capsys: Capture) -> None:
    assert main(["validate", str(config), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["valid"] is True
    assert answer["config"]["dnns"][1]["batch_size"] == 4


def test_the_resolved_configuration_is_a_configuration(config: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["validate", str(config), "--resolved"]) == 0
    again = tmp_path / "again.yaml"
    again.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["validate", str(again), "--resolved"]) == 0
    assert capsys.readouterr().out == again.read_text(encoding="utf-8")


def test_the_schema_is_json(capsys: Capture) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "dnns" in schema["properties"]


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `hpcbal validate` raise."""

    def run(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(validate_verb, "run", run)


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("no good"), 2), (CheckpointError("no good"), 2), (HpcbalError("no good"), 1)],
)
def test_an_error_is_a_sentence_and_an_exit_code(
    error: HpcbalError, code: int, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    raising(error, monkeypatch)
    assert main(["validate", str(config)]) == code
    assert capsys.readouterr().err == "hpcbal: no good\n"


def test_an_interrupt_is_130(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    assert main(["validate", str(config)]) == 130
    assert capsys.readouterr().err == "hpcbal: interrupted\n"


def test_ctrl_c_while_modules_are_imported_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    class Interrupted(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "hpcbal.cli", Interrupted("hpcbal.cli"))
    assert program.main() == 130
    assert capsys.readouterr().err == "hpcbal: interrupted\n"


def test_a_bug_keeps_its_traceback(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(ZeroDivisionError("a bug"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        main(["validate", str(config)])


class Launched:
    """Stands in for the runtime: records what the command line requested."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, list[str]]] = []

    def run(self, request: object, argv: list[str]) -> int:
        self.calls.append((request, list(argv)))
        return int(ExitCode.RUN_AGAIN)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    fake = Launched()
    module = types.ModuleType("hpcbal.runtime.launch")
    module.run = fake.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hpcbal.runtime.launch", module)
    monkeypatch.setattr("hpcbal.runtime.launch", module, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("HPCBAL_OUTPUT", "HPCBAL_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    return fake


def test_run_passes_everything_to_the_runtime(config: Path, launched: Launched) -> None:
    arguments = ["run", str(config), "-o", "out", "--set", "seed=1", "--resume", "--retry-failed"]
    assert main([*arguments, "--log-level", "debug"]) == ExitCode.RUN_AGAIN
    ((request, argv),) = launched.calls
    assert argv == [*arguments, "--log-level", "debug"]
    assert vars_of(request) == {
        "config_path": config,
        "overrides": ("seed=1",),
        "output": Path("out"),
        "resume": True,
        "retry_failed": True,
        "smoke": False,
        "profile_only": False,
        "num_operation_steps": None,
        "log_level": "DEBUG",
    }
    assert str(config.parent) in sys.path


def test_profile_only_measures(config: Path, launched: Launched) -> None:
    assert main(["profile", str(config)]) == ExitCode.RUN_AGAIN
    asked = vars_of(launched.calls[0][0])
    assert (asked["profile_only"], asked["output"], asked["log_level"]) == (True, None, "INFO")


def test_an_empty_output_is_not_the_current_directory(config: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", str(config), "--output", ""])
    assert end.value.code == 2
    assert "got an empty name, allowed: a directory; perhaps a variable is not set" in capsys.readouterr().err


def test_the_environment_replaces_missing_flags(
    config: Path, launched: Launched, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HPCBAL_OUTPUT", "there")
    monkeypatch.setenv("HPCBAL_LOG_LEVEL", "warning")
    main(["run", str(config)])
    main(["run", str(config), "--output", "here", "--log-level", "ERROR"])
    first, second = (vars_of(request) for request, _ in launched.calls)
    assert (first["output"], first["log_level"]) == (Path("there"), "WARNING")
    assert (second["output"], second["log_level"]) == (Path("here"), "ERROR")
    monkeypatch.setenv("HPCBAL_LOG_LEVEL", "loud")
    assert main(["run", str(config)]) == 2
    assert "HPCBAL_LOG_LEVEL: got 'loud', allowed: DEBUG, INFO" in capsys.readouterr().err


def vars_of(request: object) -> dict[str, object]:
    """Fields of the request by name, without the start time."""
    names = request.__dataclass_fields__.keys() - {"started_s"}  # type: ignore[attr-defined]
    return {name: getattr(request, name) for name in names}  # type: ignore[attr-defined]


def test_the_last_line_says_that_there_are_more_problems(config: Path, capsys: Capture) -> None:
    wrong = [option for i in range(MOST_PROBLEMS + 1) for option in ("--set", f"key{i}=1")]
    assert main(["validate", str(config), *wrong]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "hpcbal: more than 100 problems in the configuration; the first 100 are shown"
    assert len(lines) == MOST_PROBLEMS + 1
    assert main(["validate", "--json", str(config), *wrong]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert (len(answer["problems"]), answer["more_problems"]) == (MOST_PROBLEMS, True)
