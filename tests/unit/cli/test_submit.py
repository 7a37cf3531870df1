"""`hpcbal submit`: the script, the command, the note in the output directory, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbal.cli.main import main
from hpcbal.telemetry.files.batch_jobs import read_batch_jobs

CONFIG = """\
name: nets
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}
dnns: [{name: a, model: "hpcbal.models:softmax"}]
backend: {name: emulated, rates: {a: {1: 10}}}
slots: {per_node: 2}
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, and an empty one for stand-ins that is all there is on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def stand_in(site: Path) -> Callable[[str, str], Path]:
    def add(name: str, text: str) -> Path:
        path = site / "bin" / name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>{site}/{name}.calls\n{text}\n')
        path.chmod(0o755)
        return site / f"{name}.calls"

    return add


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def submit(site: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["submit", *arguments])
        except SystemExit as end:
            code = int(str(end.code))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_job_is_submitted_and_noted(site: Path, stand_in: Callable[[str, str], Path], submit: Run) -> None:
    calls = stand_in("sbatch", "echo 12")
    code, shown, said = submit(
        "a.yaml", "--time", "1:30", "--set", "seed=3", "--after", "7", "--after", "8", "--until-done", "4"
    )
    assert (code, said) == (0, "")
    assert calls.read_text() == "--parsable --dependency=afterany:7:8 runs/nets/batch.sh\n"
    assert shown.splitlines()[:2] == [
        "submitted 12 to Slurm",
        "asks for 1 node with 4 ranks each, for 1:30:00: 1.5 node-hours",
    ]
    assert f"log: {site}/runs/nets/hpcbal-12.log\nlook: hpcbal status runs/nets\n" in shown
    (record,) = read_batch_jobs(site / "runs/nets")
    assert (record.system, record.id, record.time_s, record.max_restarts) == ("slurm", "12", 5400, 4)
    assert record.words == ("run", "a.yaml", "--set", "seed=3", "--output", "runs/nets")
    assert (record.directory, record.log) == (str(site), f"{site}/runs/nets/hpcbal-12.log")
    assert "\n#SBATCH --time=01:30:00\n" in Path(record.script).read_text()


def test_a_dry_run_submits_and_writes_nothing(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    calls = stand_in("sbatch", "exit 1")
    code, shown, said = submit(
        "a.yaml", "--time", "0:30", "--dry-run", "--", "--qos=debug", "--mail-type", "END"
    )
    assert code == 0
    assert "\n#SBATCH --qos=debug\n#SBATCH --mail-type END\n" in shown
    assert "\nMAX_RESTARTS=0\n" in shown
    assert "would run: sbatch --parsable runs/nets/batch.sh" in said
    assert not calls.exists()
    assert not (site / "runs").exists()
    code, shown, _ = submit("a.yaml", "--time", "0:30", "--dry-run", "--json")
    assert json.loads(shown)["commands"] == ["sbatch --parsable runs/nets/batch.sh"]


def test_words_reach_the_run_as_they_were_given(site: Path, submit: Run) -> None:
    odd = 'it\'s $HOME `x` "y" \\ * #.yaml'
    (site / odd).write_text(CONFIG)
    code, shown, _ = submit(odd, "--time", "0:30", "--output", "out of a", "--system", "slurm", "--dry-run")
    assert code == 0
    (line,) = [line for line in shown.splitlines() if line.startswith("words=")]
    script = f'{line}\nprintf "%s\\n" "${{words[@]}}" "$output"'
    read = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, check=True).stdout
    assert read.splitlines() == ["run", odd, "--output", "out of a", "out of a"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("a.yaml", "--time", "0:30"),
            "no batch system found: none of sbatch (Slurm), qsub (PBS), bsub (LSF), flux (Flux)",
        ),
        (("a.yaml", "--time", "0:30", "--system", "slrum"), "(did you mean 'slurm'?)"),
        (
            ("a.yaml", "--system", "slurm"),
            "no time limit: give --time H:MM, or walltime in the configuration",
        ),
        (
            ("a.yaml", "--system", "slurm", "--time", "90"),
            "got '90', allowed: hours and minutes such as 4:00",
        ),
        (("a.yaml", "--system", "slurm", "--time", "0:00"), "got '0:00', allowed: hours and minutes"),
        (("none.yaml", "--system", "slurm", "--time", "1:00"), "none.yaml: no such file"),
        (("a.yaml", "--system", "slurm", "--time", "1:00", "--set", "slots.per_node=auto"), "is auto"),
        (("a.yaml", "--system", "slurm", "--time", "1:00", "--output", "a\nb"), "and no newline"),
        (("a.yaml", "--system", "slurm", "--time", "1:00", "--", "--comment='x'"), "without quotes"),
    ],
)
def test_wrong_input_is_one_sentence(submit: Run, arguments: tuple[str, ...], problem: str) -> None:
    code, shown, said = submit(*arguments)
    assert (code, shown) == (2, "")
    assert problem in said
    assert "Traceback" not in said


def test_a_refusal_of_the_scheduler_is_shown(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    stand_in("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    code, _, said = submit("a.yaml", "--time", "0:30")
    assert (code, said) == (2, "hpcbal: sbatch has refused, with code 1: sbatch: error: invalid partition\n")
    assert read_batch_jobs(site / "runs/nets") == []
    stand_in("sbatch", "echo welcome")
    assert "printed no number of a job: 'welcome'" in submit("a.yaml", "--time", "0:30")[2]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED"])
def test_a_second_job_waits_for_the_end_of_the_first(
    stand_in: Callable[[str, str], Path], submit: Run, state: str
) -> None:
    stand_in("sbatch", "echo 12")
    stand_in("scontrol", f"echo 'JobId=12 JobState={state} Reason=None ExitCode=0:0'")
    assert submit("a.yaml", "--time", "0:30")[0] == 0
    code, _, said = submit("a.yaml", "--time", "0:30")
    assert code == (0 if state == "COMPLETED" else 2)
    assert (f"runs/nets: its job 12 is {state.lower()}" in said) == (code == 2)
