"""The light verbs as a user runs them, most of them in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbal.cli.main import main

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
Here = Callable[..., subprocess.CompletedProcess[str]]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def hpcbal(*arguments: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "hpcbal", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **environ},
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """The same in this process and in a folder of its own, where the way into the program shows nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = main(arguments)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("config", CONFIGS, ids=[path.name for path in CONFIGS])
def test_every_configuration_of_the_project_is_valid(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, because a start for each file would take longer than the rest."""
    monkeypatch.chdir(ROOT)
    code = main(["validate", str(config.relative_to(ROOT))])
    out, err = capsys.readouterr()
    warnings = err.splitlines()
    if config.name == "reference.yaml":  # it shows `init` with a run that nobody has
        (line,) = warnings
        assert line.endswith("init: got runs/base, but that is not the output directory of a run")
        warnings = []
    if config.name == "fashion_mnist.yaml":  # the files of a Debian package
        warnings = [each for each in warnings if "data.args.path: got '/usr/share/datasets/" not in each]
    assert (code, warnings) == (0, [])
    assert f"configs/{config.name}: valid, " in out


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, "größe"),
        ({"LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "größe"),
        ({"PYTHONIOENCODING": "ascii"}, "gr\\xf6\\xdfe"),
    ],
)
def test_umlauts_are_shown_and_found_in_any_locale(
    tmp_path: Path, environ: dict[str, str], shown: str
) -> None:
    (tmp_path / "größe.yaml").write_text((ROOT / "configs" / "quickstart.yaml").read_text())
    valid = hpcbal("validate", "größe.yaml", "--set", "output.dir=runs/größe", cwd=tmp_path, **environ)
    assert (valid.returncode, valid.stderr) == (0, "")
    assert valid.stdout == f"{shown}.yaml: valid, 7 DNNs, output in runs/{shown}\n"
    wrong = hpcbal("validate", "größe.yaml", "--set", "größe=3", cwd=tmp_path, **environ)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith(f"--set {shown}=3: unknown key")
    resolved = hpcbal("validate", "größe.yaml", "--set=output.dir=ä", "--resolved", cwd=tmp_path, **environ)
    assert "dir: ä\n" in resolved.stdout, "data is UTF-8, for the next program that reads it"


def test_a_wrong_file_ends_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("seed: x\nsed: 1\ndnns: [{name: a}]\n", encoding="utf-8")
    result = hpcbal("validate", "run.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert lines[0] == "run.yaml:1: seed: got 'x', allowed: a whole number from 0 to 2**32 - 1"
    assert lines[1].startswith("run.yaml:2: sed: unknown key (did you mean 'seed'?), allowed: schema, ")
    assert lines[-1] == f"hpcbal: {len(lines) - 1} problems in the configuration"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("verb", ["validate", "plan", "run", "profile"])
def test_a_missing_configuration_is_one_sentence(verb: str, here: Here) -> None:
    result = here(verb, "none.yaml")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "none.yaml: no such file; give the path of a YAML configuration\n"


def test_user_modules_beside_the_configuration_are_found_but_not_run(here: Here, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "raise SystemExit('ran')\ndef net(input_shape, num_classes, depth): ...\n", encoding="utf-8"
    )
    (tmp_path / "run.yaml").write_text(
        "dnns:\n  - name: a\n    model: mine:net\n    args: {depth: 2}\n    batch_size: 2\n"
        "    optimizer: {name: adam, learning_rate: 0.1}\n    stop: {max_epochs: 1}\n",
        encoding="utf-8",
    )
    assert here("validate", str(tmp_path / "run.yaml")).returncode == 0
    result = here("validate", str(tmp_path / "run.yaml"), "--set", "dnns.a.model=mine:nt")
    assert result.returncode == 2
    assert "mine.py defines no 'nt' (did you mean 'net'?)" in result.stderr


def test_a_plan_is_data_on_stdout_and_prose_on_stderr(here: Here, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}\n"
        "dnns: [{name: a, model: 'm:f'}, {name: b, model: 'm:f'}]\n"
        "backend: {name: emulated, rates: {a: {1: 10}, b: {1: 9}}}\n",
        encoding="utf-8",
    )
    result = here("plan", "run.yaml", "--slots-per-node", "2", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert len(json.loads(result.stdout)["flotillas"]) == 1
    text = here("plan", "run.yaml", "--slots-per-node", "2")
    assert text.stderr == "hpcbal: rates from backend.rates\n"


@pytest.mark.parametrize("verb", [["schema"], ["status", "RUN", "--json"]])
def test_a_reader_that_goes_away_is_no_error(verb: list[str], tmp_path: Path) -> None:
    from hpcbal.telemetry.views.ensemble_table import new_status
    from hpcbal.telemetry.views.status import write_status

    write_status(tmp_path / "status.json", new_status("a", 1))
    arguments = [str(tmp_path) if part == "RUN" else part for part in verb]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "hpcbal", *arguments],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            cwd=ROOT,
        )
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("options", [[], ["--json"], ["--resolved"]])
def test_output_that_cannot_be_written_is_reported_in_a_sentence(options: list[str]) -> None:
    command = [sys.executable, "-m", "hpcbal", "validate", "configs/quickstart.yaml", *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (
        2,
        "hpcbal: cannot write to standard output: No space left on device\n",
    )
