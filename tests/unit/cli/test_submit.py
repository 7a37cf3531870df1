"""`hpcbal submit`: the script, the command, the note in the output directory, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hpcbal.cli.main import main
from hpcbal.cli.submitting import submitting
from hpcbal.cluster.systems import commands
from hpcbal.cluster.systems.job import Command
from hpcbal.config import load_config, resolved_yaml
from hpcbal.telemetry.files.batch_jobs import read_batch_jobs
from hpcbal.telemetry.files.run_directory import RunDirectory

CONFIG = """\
name: nets
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}
dnns: [{name: a, model: "hpcbal.models:softmax"}]
backend: {name: emulated, rates: {a: {1: 10}}}
slots: {per_node: 2}
"""
JOBS = """\
kind: jobs
jobs:
  - name: one
    app: hpcbal.paramserver.apps:NMF
    args: {rank: 2, access: dense}
    data: {dataset: "hpcbal.paramserver.apps:generated_ratings", args: {num_users: 200, num_items: 50}}
    mini_batch: 50
    stop: {max_epochs: 3}
machines: [{count: 4}]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, and an empty one for stand-ins that is all there is on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCBAL_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text("{}")
    (tmp_path / "a.yaml").write_text(CONFIG)
    (tmp_path / "jobs.yaml").write_text(JOBS)
    (tmp_path / "b.yaml").write_text(
        CONFIG.replace("name: nets", "name: more").replace("per_node: 2", "per_node: 3")
    )
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
    assert calls.read_text() == f"--parsable --dependency=afterany:7:8 {site}/runs/nets/batch-1.sh\n"
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
    assert f"would run: sbatch --parsable {site}/runs/nets/batch-1.sh" in said
    assert not calls.exists()
    assert not (site / "runs").exists()
    code, shown, _ = submit("a.yaml", "--time", "0:30", "--dry-run", "--json")
    assert json.loads(shown)["commands"] == [f"sbatch --parsable {site}/runs/nets/batch-1.sh"]


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
        (("a.yaml", "--system", "slurm", "--set", "backend={name: tensorflow}"), "; or give --time H:MM"),
        (("a.yaml", "--system", "slurm", "--nodes", "auto"), "--nodes auto and --use SHARE go together"),
        (("a.yaml", "--system", "slurm", "--use", "0.8"), "--nodes auto and --use SHARE go together"),
        (("--system", "slurm"), "no configuration: give CONFIG, or --array-of FILE..."),
        (("a.yaml", "--system", "slurm", "--array", "seed=1"), "allowed: seeds=0-9 or seeds=1,3,5-7"),
        (("a.yaml", "--system", "slurm", "--array", "seeds="), "allowed: seeds=0-9 or seeds=1,3,5-7"),
        (("a.yaml", "--system", "slurm", "--array", "seeds=9-0"), "which has no seeds"),
        (("a.yaml", "--system", "slurm", "--array", "seeds=0-1000"), "at most 1000 seeds"),
        (("a.yaml", "--system", "slurm", "--array-of", "a.yaml"), "give neither CONFIG nor --array"),
        (("--system", "slurm", "--array-of", "a.yaml", "a.yaml"), "both write to runs/nets"),
        (("--system", "slurm", "--array-of"), "expected at least one argument"),
        (
            ("--array-of", "a.yaml", "b.yaml", "--time", "0:30", "--system", "slurm"),
            "so submit them one by one",
        ),
        (
            ("a.yaml", "--system", "slurm", "--time", "90"),
            "got '90', allowed: auto, or hours and minutes such as 4:00",
        ),
        (
            ("a.yaml", "--system", "slurm", "--time", "0:00"),
            "got '0:00', allowed: auto, or hours and minutes",
        ),
        (("none.yaml", "--system", "slurm", "--time", "1:00"), "none.yaml: no such file"),
        (("a.yaml", "--system", "slurm", "--time", "1:00", "--set", "slots.per_node=auto"), "is auto"),
        (("a.yaml", "--system", "slurm", "--time", "1:00", "--output", "a\nb"), "and no newline"),
        (("a.yaml", "--system", "slurm", "--time", "1:00", "--", "--comment='x'"), "without quotes"),
        (("a.yaml", "--system", "slurm", "--time", "0:01"), "got 0:01:00, allowed in a batch job: 0:02:00"),
        (
            ("a.yaml", "--system", "slurm", "--set", "walltime=00:01:30"),
            "walltime: got 0:01:30, allowed in a batch job",
        ),
        (("a.yaml", "--system", "slurm", "--after", "x y"), "got 'x y', allowed: the identifier of a job"),
        (("a.yaml", "--system", "slurm", "--after", ""), "got '', allowed: the identifier of a job"),
        (("a.yaml", "--system", "slurm", "--after", "-5"), "got '-5', allowed: the identifier of a job"),
        (
            ("jobs.yaml", "--system", "slurm", "--time", "1:00", "--nodes", "6"),
            "--nodes: got 6, allowed: at most 5, because 1 master and 4 executors",
        ),
        (
            ("jobs.yaml", "--system", "slurm", "--time", "1:00", "--nodes", "4"),
            "--nodes: got 4, allowed: at most 3",
        ),
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
    stand_in("sbatch", "printf '%s\\n' 'sbatch: invalid option --x' 'Try \"sbatch --help\"' >&2; exit 255")
    assert 'with code 255: sbatch: invalid option --x; Try "sbatch' in submit("a.yaml", "--time", "0:30")[2]
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
    assert (
        f"runs/nets: its job 12 is {state.lower()}; start the new job behind it with --after 12" in said
    ) == (code == 2)
    code, _, said = submit("a.yaml", "--time", "0:30", "--dry-run")
    assert (code, "its job 12 is" in said) == (0, state != "COMPLETED")
    assert submit("a.yaml", "--time", "0:30", "--after", "12", "--until-done", "20")[0] == 0


def test_a_chain_of_jobs_waits_for_all_that_may_still_run(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    calls = stand_in("sbatch", f"wc -l <{site}/sbatch.calls; /bin/cp ${{!#}} {site}/$(basename ${{!#}}).seen")
    (site / "bin/basename").symlink_to("/usr/bin/basename")
    (site / "bin/wc").symlink_to("/usr/bin/wc")
    states = {"1": "RUNNING", "2": "PENDING", "3": "PENDING"}
    answers = " ".join(f"{n}) echo 'JobId={n} JobState={state}' ;;" for n, state in states.items())
    stand_in("scontrol", f"case $4 in {answers} esac")
    words = ("a.yaml", "--time", "0:30")
    assert submit(*words)[0] == 0
    assert submit(*words, "--after", "1")[0] == 0
    mark = site / "runs/nets/batch-1.cancel"
    mark.touch()  # as of a cancel of the first one, which takes its time to stop
    assert submit(*words, "--after", "2")[0] == 0
    names = ["batch-1.sh", "batch-2.sh", "batch-3.sh"]
    assert [line.split("/")[-1] for line in calls.read_text().splitlines()] == names
    assert [path.name for path in sorted((site / "runs/nets").glob("*.sh"))] == ["batch.sh"]
    assert [line.split()[1] for line in calls.read_text().splitlines()[1:]] == [
        "--dependency=afterany:1",
        "--dependency=afterany:2:1",
    ]
    assert mark.exists()
    records = read_batch_jobs(site / "runs/nets")
    assert [record.cancel for record in records] == ["batch-1.cancel", "batch-2.cancel", "batch-3.cancel"]
    for name, record in zip(names, records, strict=True):
        assert f"--mark {record.cancel}" in (site / f"{name}.seen").read_text()
    stand_in("scontrol", "[[ $4 == 1 ]] && echo JobState=RUNNING || echo JobState=CANCELLED")
    assert "its job 1 is running; start the new job behind it with --after 1" in submit(*words)[2]
    assert [record.is_over for record in read_batch_jobs(site / "runs/nets")] == [False] * 3
    stand_in("scontrol", "echo JobState=CANCELLED")
    assert submit(*words)[0] == 0
    assert [record.is_over for record in read_batch_jobs(site / "runs/nets")] == [True] * 3 + [False]


def test_a_job_is_noted_before_the_scheduler_is_asked(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    folder = site / "runs/nets"
    stand_in("sbatch", f"/bin/cp {folder}/batch.jsonl {site}/seen; echo 12")
    assert submit("a.yaml", "--time", "0:30")[0] == 0
    intent = json.loads((site / "seen").read_text())
    (record,) = read_batch_jobs(folder)
    assert (intent["id"], intent["name"], record.id) == ("", "nets", "12")
    assert record.submitted_s == intent["submitted_s"]
    stand_in("scontrol", "echo JobState=COMPLETED")
    stand_in("sbatch", f"/bin/rm {folder}/batch.jsonl; /bin/mkdir {folder}/batch.jsonl; echo 13")
    code, _, said = submit("a.yaml", "--time", "0:30")
    assert (code, "job 13 is submitted to Slurm, but not noted: runs/nets/batch.jsonl" in said) == (2, True)


def test_a_scheduler_may_read_a_large_script_slowly() -> None:
    words = ("/bin/bash", "-c", "/bin/sleep 0.5; /usr/bin/wc -c")
    assert commands.submit(Command(words, stdin=300_000 * "x"), str.strip).number == "300000"


@pytest.mark.parametrize("signal", ["INT", "TERM"])
def test_a_job_that_is_submitted_while_the_user_goes_is_noted(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run, signal: str
) -> None:
    stand_in("sbatch", f"kill -{signal} $PPID; /bin/sleep 0.3; echo 12")
    code, _, said = submit("a.yaml", "--time", "0:30")
    assert (code, said.startswith("submitted 12 to Slurm\n")) == (130, True)
    assert said.endswith("hpcbal: interrupted\n")
    assert [record.id for record in read_batch_jobs(site / "runs/nets")] == ["12"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("exec /bin/sleep 60", "sbatch: no answer within"),
        ("echo welcome", "sbatch has ended well, but printed no number of a job: 'welcome'"),
        (
            "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv' >&2; exit 1",
            "sbatch has refused, with code 1: sbatch: error: Batch job submission failed: Socket timed out",
        ),
    ],
)
def test_a_job_that_may_be_in_the_queue_is_remembered(
    site: Path,
    stand_in: Callable[[str, str], Path],
    submit: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    problem: str,
) -> None:
    if "sleep" in answer:
        monkeypatch.setattr(submitting, "submit", partial(commands.submit, timeout_s=0.4))
    calls = stand_in("sbatch", answer)
    words = ("a.yaml", "--time", "0:30")
    code, _, said = submit(*words)
    assert (code, said.startswith(f"hpcbal: {problem}")) == (2, True)
    assert (
        "the job may be in the queue: look for 'nets' with 'squeue --me' before you submit again; 'hpcbal "
        "cancel runs/nets' makes it end when it starts" in said
    )
    assert main(["status", "runs/nets"]) == 0
    assert "its number is not known: 'hpcbal submit' is still at work" in capsys.readouterr().out
    stand_in("sbatch", "echo 13")
    code, _, said = submit(*words)
    assert (code, "and submit again" in said, len(calls.read_text().splitlines())) == (2, True, 1)
    assert main(["cancel", "runs/nets"]) == 2
    assert capsys.readouterr().err.endswith("; it ends when it starts\n")
    assert main(["status", "runs/nets", "--watch", "--json"]) == 0  # nobody can say more of it
    assert "it was cancelled, and ends when it starts" in capsys.readouterr().out
    starting = ["launcher", "--starting", "--output", "runs/nets", "--job", "12", "--mark"]
    assert main([*starting, "batch-1.cancel"]) == 75
    assert submit(*words)[0] == 0
    assert [record.id for record in read_batch_jobs(site / "runs/nets")] == ["", "13"]
    (site / "runs/nets/batch-1.cancel").unlink()
    assert main([*starting, "batch-1.cancel"]) == 0, "a job whose number is not known notes it at its start"
    assert [record.id for record in read_batch_jobs(site / "runs/nets")] == ["13", "12"]


def test_a_command_that_prints_a_number_and_does_not_end_has_submitted_a_job(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "submit", partial(commands.submit, timeout_s=2.0))
    stand_in("sbatch", "echo 12; exec /bin/sleep 60")
    code, shown, _ = submit("a.yaml", "--time", "0:30")
    assert (code, shown.startswith("submitted 12 to Slurm")) == (0, True)


def test_of_two_submissions_at_once_the_first_one_goes_on(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    """The second one begins when the first one has looked: here, when it asks for earlier jobs."""
    stand_in("sbatch", "echo 12")
    stand_in("scontrol", "echo JobState=COMPLETED")
    assert submit("a.yaml", "--time", "0:30")[0] == 0
    first = (
        (site / "runs/nets/batch.jsonl").read_text().splitlines()[0].replace('"batch-1.cancel"', '"b.cancel"')
    )
    (site / "first").write_text(first.replace('"submitted_s": ', '"submitted_s": 1') + "\n")
    stand_in("scontrol", f"/bin/cat {site}/first >>{site}/runs/nets/batch.jsonl; echo JobState=COMPLETED")
    calls = stand_in("sbatch", "echo 13")
    code, _, said = submit("a.yaml", "--time", "0:30")
    assert (code, "runs/nets: another job was submitted for it just now" in said) == (2, True)
    assert len(calls.read_text().splitlines()) == 1
    assert [record.id for record in read_batch_jobs(site / "runs/nets")] == ["12", ""]
    assert not (site / "runs/nets/batch-2.sh").exists()


def test_a_job_behind_one_that_would_submit_itself_again_is_refused(
    stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    """The scheduler would start it as soon as the first of the chain has ended."""
    stand_in("flux", """[[ $1 == batch ]] && echo f12 || echo '{"state": "RUN"}'""")
    assert submit("a.yaml", "--time", "0:30", "--until-done", "3")[0] == 0
    code, _, said = submit("a.yaml", "--time", "0:30", "--after", "f12")
    assert (code, "its job f12 is running; wait for its end" in said) == (2, True)


def test_a_job_behind_the_tasks_of_an_array_may_be_submitted(
    stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    stand_in("sbatch", "echo 12")
    line = "JobId=13 ArrayJobId=12 ArrayTaskId=1-2 JobState=RUNNING Reason=None ExitCode=0:0"
    asked = stand_in("scontrol", f"echo '{line}'")
    words = ("a.yaml", "--time", "0:30", "--array", "seeds=0-1", "--until-done", "3")
    assert submit(*words)[0] == 0
    code, _, said = submit(*words)
    assert (code, "start the new array behind its jobs with --after, wait for" in said) == (2, True)
    seen = asked.read_text().splitlines()
    assert [line for line in seen if line != "show config"] == ["--oneliner show job 12"], "for all tasks"
    assert submit(*words, "--after", "12")[0] == 0


def test_a_second_job_is_refused_while_the_state_of_the_first_is_not_known(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    stand_in("sbatch", "echo 12")
    stand_in("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    stand_in("sacct", "exit 1")
    words = ("a.yaml", "--time", "0:30", "--array", "seeds=0-2")
    assert submit(*words)[0] == 0
    code, _, said = submit(*words)
    assert (code, said.count("\n")) == (2, 1)
    assert "its job 12_1 still runs is not known: scontrol has ended with 1" in said
    assert "remove runs/nets/seed-0/batch.jsonl" in said
    assert submit(*words, "--dry-run")[0] == 0
    assert submit(*words, "--after", "12")[0] == 0


def test_a_job_to_wait_for_that_is_unknown_is_a_warning(
    stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    stand_in("sbatch", "echo 12")
    stand_in("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    stand_in("sacct", "exit 1")
    code, _, said = submit("a.yaml", "--time", "0:30", "--after", "999")
    assert (code, "--after: Slurm does not know job 999, or no longer; where it takes" in said) == (0, True)
    stand_in("scontrol", "echo JobState=RUNNING")
    assert submit("a.yaml", "--time", "0:30", "--output", "other", "--after", "998")[2] == ""


def test_a_job_of_another_cluster_is_no_reason_for_a_second_one(
    stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    """Where the number is unknown, or another's, which has ended."""
    stand_in("sbatch", "echo 12")
    for cluster, code in (("one", 0), ("two", 2), ("one", 0)):
        stand_in(
            "scontrol", f"[[ $2 == config ]] && echo 'ClusterName = {cluster}' || echo JobState=COMPLETED"
        )
        found, _, said = submit("a.yaml", "--time", "0:30")
        assert (found, "it is a job of cluster one, and two answers here" in said) == (code, code == 2)


def test_a_job_inherits_the_language_of_its_user(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is read is asked for in English."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    stand_in("sbatch", f"echo submit $LC_ALL >>{site}/seen; echo 12")
    asked = f"[[ $2 == config ]] || echo ask $LC_ALL >>{site}/seen"
    stand_in("scontrol", f"{asked}; echo 'JobState=COMPLETED ExitCode=0:0'")
    for _ in range(2):
        assert submit("a.yaml", "--time", "0:30")[0] == 0
    assert (site / "seen").read_text().splitlines() == ["submit C.UTF-8", "ask C", "submit C.UTF-8"]


@pytest.mark.parametrize(
    ("system", "options", "instead"),
    [
        ("slurm", "--nodes=4", "--nodes"),
        ("slurm", "-N 4", "--nodes"),
        ("slurm", "--qos=low --time 5", "--time"),
        ("slurm", "-t5", "--time"),
        ("slurm", "--ntasks-per-node=9", "--nodes and slots.per_node"),
        ("slurm", "--array=1-3", "--array"),
        ("slurm", "-d afterok:1", "--after"),
        ("slurm", "--arra=1-3", "--array"),
        ("slurm", "--tim 5", "--time"),
        ("slurm", "--tasks-per-node=2", "--nodes and slots.per_node"),
        ("slurm", "-HN4", "--nodes"),
        ("slurm", "--chdir=/tmp", "cd"),
        ("slurm", "-o x.log", "--output"),
        ("slurm", "-M other", "hpcbal submit on that cluster"),
        ("slurm", "--clus=other", "hpcbal submit on that cluster"),
        ("slurm", "--wait", "hpcbal status --watch"),
        ("pbs", "-l select=4:ncpus=8", "--nodes"),
        ("pbs", "-lwalltime=1:00:00", "--time"),
        ("pbs", "-l filesystems=home,walltime=1:00:00", "--time"),
        ("pbs", "-W depend=afterok:1", "--after"),
        ("pbs", "-o /tmp/x", "--output"),
        ("pbs", "-z", "none"),
        ("pbs", "-I", "qsub -I with a shell"),
        ("slurm", "--wrap=x", "before and after of the site file"),
        ("flux", "--wrap", "before and after of the site file"),
        ("lsf", "-Jx[1-3]", "--array"),
        ("lsf", "-J x[1-10]", "--array"),
        ("lsf", "-oo x.log", "--output"),
        ("lsf", "-R span[hosts=1]", "--nodes and slots.per_node"),
        ("flux", "--time-l=4h", "--time"),
        ("flux", "--cc=1-3", "--array"),
        ("lsf", "-n 4", "--nodes and slots.per_node"),
        ("lsf", "-nnodes 4", "--nodes"),
        ("lsf", "-W 4:00", "--time"),
        ("flux", "-N4", "--nodes"),
        ("flux", "--time-limit=4h", "--time"),
        ("flux", "-t 4h", "--time"),
        ("flux", "--dry-run", "hpcbal submit --dry-run"),
        ("slurm", "--test-only", "hpcbal submit --dry-run"),
    ],
)
def test_options_that_would_change_what_is_asked_for_are_refused(
    site: Path, submit: Run, system: str, options: str, instead: str
) -> None:
    words = ("a.yaml", "--time", "0:30", "--dry-run", "--system", system)
    code, shown, said = submit(*words, "--", *options.split())
    assert (code, shown) == (2, "")
    assert f"; use {instead}" in said
    (site / "site.yaml").write_text(f"options: {json.dumps(options.split())}\n")
    assert submit(*words)[0] == 2


@pytest.mark.parametrize(
    ("system", "options"),
    [
        (
            "slurm",
            "--no-kill --nodelist=n1 --time-min=5 --nice --tmp=1G --signal=B:USR2@60 --account=a -J n "
            "--wait-all-nodes=1 -e x.err --cluster-constraint=x",
        ),
        ("pbs", "-l filesystems=home -l place=pack -A a -W group_list=x"),
        ("lsf", "-P a -q b -wt 3 -Ne -J mine -R rusage[mem=4] -cn_mem x"),
        ("flux", "--bank=a --queue=b --tmpdir=x"),
    ],
)
def test_other_options_reach_the_job(submit: Run, system: str, options: str) -> None:
    words = ("a.yaml", "--time", "0:30", "--dry-run", "--system", system)
    assert submit(*words, "--", *options.split())[0] == 0


def test_the_time_is_the_upper_end_of_the_band_with_room_for_the_signal(
    submit: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """6 minutes and 28 seconds, and two minutes for a checkpoint and the clean stop, as `plan` says."""
    arguments = ("a.yaml", "--system", "slurm", "--samples", "1798", "--dry-run", "--json")
    code, shown, _ = submit(*arguments)
    found = json.loads(shown)
    assert code == 0
    assert found["job"]["time_s"] == 540
    assert found["job"]["lead_s"] == 120
    assert any("half to twice the prediction" in reason for reason in found["why"])
    assert any(reason.startswith("busy: ") for reason in found["why"])
    assert json.loads(submit(*arguments, "--time", "auto")[1]) == found
    assert main(["plan", "a.yaml", "--samples", "1798", "--nodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time"]["ask_s"] == found["job"]["time_s"]
    short = json.loads(submit(*arguments, "--time", "0:10")[1])
    assert (short["job"]["time_s"], short["job"]["lead_s"]) == (600, 150)
    walltime = json.loads(submit(*arguments, "--set", "walltime=02:00:00")[1])
    assert (walltime["job"]["time_s"], walltime["job"]["lead_s"]) == (7200, 300)


def test_the_prediction_uses_rates_that_the_output_directory_holds(site: Path, submit: Run) -> None:
    config = CONFIG.replace("rates: {a: {1: 10}}", "")
    (site / "a.yaml").write_text(config.replace("name: emulated, ", "name: tensorflow"))
    words = ("a.yaml", "--system", "slurm", "--dry-run", "--output", "runs/mine", "--samples", "100")
    assert "runs/mine/profile.json does not exist" in submit(*words)[2]
    for arguments in ((), ("--array", "seeds=0")):
        folder = site / "runs/mine" / ("seed-0" if arguments else "")
        folder.mkdir(parents=True, exist_ok=True)
        assert f"{folder.relative_to(site)}/profile.json does not exist" in submit(*words, *arguments)[2]


def test_a_job_does_not_inherit_the_variables_of_the_job_that_submits_it(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("HPCBAL_CHAIN", "HPCBAL_END_FILE", "HPCBAL_END_TIME", "HPCBAL_TASK")
    for name in (*names, "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID", "MINE"):
        monkeypatch.setenv(name, "7")
    stand_in("sbatch", f"compgen -e >{site}/seen; echo 12")
    assert submit("a.yaml", "--time", "0:30")[0] == 0
    seen = (site / "seen").read_text().split()
    assert "MINE" in seen
    assert not {name for name in seen if name in names or name.startswith("SLURM_")}


def test_nodes_are_as_many_as_plan_says(submit: Run, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--samples", "100000", "--nodes", "auto", "--use", "0.9", "--json")
    code, shown, _ = submit("a.yaml", "--system", "slurm", *sizes, "--dry-run")
    assert main(["plan", "a.yaml", *sizes]) == code == 0
    planned = json.loads(capsys.readouterr().out)["nodes"]
    assert json.loads(shown)["job"]["num_nodes"] == len(planned) > 1


def test_an_array_of_seeds_has_a_directory_for_each_and_a_comparison(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    calls = stand_in("sbatch", "[[ $* == *--array* ]] && echo 12 || echo 13")
    code, shown, _ = submit("a.yaml", "--time", "0:30", "--array", "seeds=3,5-6", "--output", "out")
    assert code == 0
    assert calls.read_text().splitlines() == [
        f"--parsable --array=1-3 {site}/out/batch-1.sh",
        f"--parsable --dependency=afterany:12 {site}/out/compare.sh",
    ]
    assert "asks 3 times for 1 node with 4 ranks each, for 0:30:00: 1.5 node-hours" in shown
    assert "then: job 13 writes out/compare.html" in shown
    for number, seed in enumerate((3, 5, 6), 1):
        (record,) = read_batch_jobs(site / "out" / f"seed-{seed}")
        assert (record.id, record.log) == (f"12_{number}", f"{site}/out/hpcbal-12_{number}.log")
        assert record.words[2:] == ("--set", f"seed={seed}", "--output", f"out/seed-{seed}")
    script = (site / "out" / "compare.sh").read_text()
    assert "hpcbal compare out/seed-3 out/seed-5 out/seed-6 --html out/compare.html\n" in script


def test_runs_are_noted_also_if_what_follows_is_refused(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    stand_in("sbatch", "[[ $* == *--array* ]] && echo 12 || exit 1")
    code, shown, said = submit("a.yaml", "--time", "0:30", "--array", "seeds=0-1", "--output", "out")
    assert (code, "submitted 12 to Slurm" in shown) == (0, True)
    assert "not their comparison; later: hpcbal compare out/seed-0 out/seed-1 --html out/compare.html" in said
    stand_in("sbatch", "echo 14; /bin/mkdir -p new/compare.sh")
    code, shown, said = submit("a.yaml", "--time", "0:30", "--array", "seeds=0-1", "--output", "new")
    assert (code, "submitted 14 to Slurm" in shown) == (0, True)
    assert "the runs are submitted, but not their comparison" in said
    stand_in("flux", "[[ $HPCBAL_TASK == 1 ]] && echo f1 || exit 1")
    code, _, said = submit(
        "a.yaml", "--system", "flux", "--time", "0:30", "--array", "seeds=0-1", "--output", "more"
    )
    assert (code, said) == (2, "hpcbal: flux has refused, with code 1; 1 of 2 runs are submitted: f1\n")
    assert [len(read_batch_jobs(site / "more" / f"seed-{seed}")) for seed in (0, 1)] == [1, 0]


def test_one_script_is_kept_and_none_is_shared_by_two_submissions(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    """Batch systems copy a script when it is submitted; those of one folder may be submitted at once."""
    submission = f"{sys.executable} -m hpcbal submit a.yaml --time 0:30 --array seeds=1 --output out"
    (site / "bin/dirname").symlink_to("/usr/bin/dirname")
    stand_in(
        "qsub",
        f"if [[ ! -e {site}/second ]]; then /bin/touch {site}/second; {submission} >{site}/second.out; fi\n"
        f'/bin/cat "${{!#}}" >>{site}/scripts; echo 12.server',
    )
    code, _, said = submit("a.yaml", "--time", "0:30", "--array", "seeds=0", "--output", "out")
    assert code == 0, said
    submitted = [line for line in (site / "scripts").read_text().splitlines() if line.startswith("1) words=")]
    assert [line.partition("seed=")[2][0] for line in submitted] == ["1", "0"]
    assert sorted(path.name for path in (site / "out").glob("*.sh")) == ["batch.sh", "compare.sh"]
    assert "seed=0" in (site / "out/batch.sh").read_text()
    stand_in("qsub", "exit 1")
    assert submit("a.yaml", "--time", "0:30", "--array", "seeds=2", "--output", "out")[0] == 2
    assert "seed=0" in (site / "out/batch.sh").read_text()


def test_output_is_that_of_the_environment_or_refused(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("sbatch", "echo 12")
    monkeypatch.setenv("HPCBAL_OUTPUT", "of/mine")
    assert submit("a.yaml", "--time", "0:30")[0] == 0
    assert read_batch_jobs(site / "of/mine")[0].words[-1] == "of/mine"
    (site / "data").mkdir()
    (site / "data" / "photo.jpg").touch()
    code, _, said = submit("a.yaml", "--time", "0:30", "--output", "data")
    assert (code, "not an output directory of hpcbal (it holds photo.jpg)" in said) == (2, True)


def test_a_changed_configuration_is_refused_before_it_waits_in_the_queue(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    calls = stand_in("sbatch", "echo 12")
    for seed in (0, 1):
        run = RunDirectory(site / "out" / f"seed-{seed}")
        run.job("a").mkdir(parents=True)
        (run.job("a") / "checkpoint.h5").touch()
        run.config.write_text(resolved_yaml(load_config(site / "a.yaml", [f"seed={seed}"])))
    words = ("a.yaml", "--time", "0:30", "--array", "seeds=0-1", "--output", "out")
    code, _, said = submit(*words, "--set", "defaults.batch_size=8")
    assert (code, "batch_size" in said) == (2, True)
    assert not calls.exists()
    assert submit(*words)[0] == 0, "the same configuration continues"


def test_an_environment_that_cannot_be_activated_is_on_path(
    site: Path, submit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of conda; PBS gives a job no variables of the shell that submits."""
    (site / "my env" / "bin").mkdir(parents=True)
    (site / "my env" / "bin" / "hpcbal").touch()
    monkeypatch.setattr(sys, "prefix", str(site / "my env"))
    _, shown, _ = submit("a.yaml", "--time", "0:30", "--system", "pbs", "--dry-run")
    assert f"\nexport PATH='{site}/my env/bin':$PATH\n" in shown
    assert "\nHPCBAL_VENV=" not in shown
    (site / "my env" / "bin" / "activate").touch()
    _, shown, _ = submit("a.yaml", "--time", "0:30", "--system", "pbs", "--dry-run")
    assert f"\nHPCBAL_VENV='{site}/my env'\n" in shown


def test_an_array_of_files_has_the_directories_of_the_files(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    stand_in("sbatch", "[[ $* == *--array* ]] && echo 12 || echo 13")
    (site / "b.yaml").write_text(CONFIG.replace("name: nets", "name: more"))
    assert submit("--array-of", "a.yaml", "b.yaml", "--time", "0:30")[0] == 0
    assert [read_batch_jobs(site / "runs" / name)[0].id for name in ("nets", "more")] == ["12_1", "12_2"]
    assert (site / "runs" / "batch.sh").exists()
    assert submit("--array-of", "a.yaml", "b.yaml", "--time", "0:30", "--output", "all")[0] == 0
    assert read_batch_jobs(site / "all" / "more")[0].words[-2:] == ("--output", "all/more")


def test_an_array_where_the_system_has_none_is_a_job_for_each(
    site: Path, stand_in: Callable[[str, str], Path], submit: Run
) -> None:
    calls = stand_in(
        "flux",
        f"[[ $1 == batch ]] || exit 1; echo task=$HPCBAL_TASK >>{site}/tasks; mapfile -t n <{site}/tasks; "
        "echo f${#n[@]}",
    )
    assert submit("a.yaml", "--time", "0:30", "--array", "seeds=0-1", "--after", "f9")[0] == 0
    assert (site / "tasks").read_text().split() == ["task=1", "task=2", "task="]
    assert calls.read_text().splitlines() == [
        "jobs --json f9",
        *[f"batch --dependency=afterany:f9 {site}/runs/nets/batch-1.sh"] * 2,
        f"batch --dependency=afterany:f1 --dependency=afterany:f2 {site}/runs/nets/compare.sh",
    ]
    assert read_batch_jobs(site / "runs/nets/seed-1")[0].id == "f2"


def test_the_site_file_is_in_every_job(site: Path, submit: Run) -> None:
    (site / "site.yaml").write_text(
        "system: slurm\naccount: proj\ncores_per_node: 32\ngpus_per_node: 4\nexclusive: false\n"
        "options: [--qos=low]\n"
    )
    gpus = ("--set", "slots={per_node: auto}", "--set", "backend={name: tensorflow}")
    code, shown, _ = submit("a.yaml", *gpus, "--time", "0:30", "--dry-run", "--", "--qos=high")
    assert code == 0
    head = [line.removeprefix("#SBATCH ") for line in shown.splitlines() if line.startswith("#SBATCH")]
    assert {"--account=proj", "--ntasks-per-node=6", "--cpus-per-task=5", "--gpus-per-node=4"} <= {*head}
    assert head[-2:] == ["--qos=low", "--qos=high"]
    assert "--exclusive" not in head
    for slots, ranks, num_gpus in (("per_node: auto", 10, 4), ("per_node: 5", 7, 3)):
        shared = ("--set", f"slots={{{slots}, per_gpu: 2}}", *gpus[2:], "--time", "0:30", "--dry-run")
        code, shown, _ = submit("a.yaml", *shared)
        assert code == 0
        assert f"--ntasks-per-node={ranks}\n" in shown
        assert f"--gpus-per-node={num_gpus}\n" in shown
    (site / "site.yaml").write_text("system: slurm\nlauncher: jsrun\n")
    code, _, said = submit("a.yaml", "--time", "0:30", "--dry-run")
    assert (code, "allowed with slurm: srun, mpirun" in said) == (2, True)


@pytest.mark.parametrize("name", ["12", "12_3", "12[].server-1", "12[3]", "ƒM7Zq9AKHno", "f2.a"])
def test_identifiers_of_all_systems_may_be_waited_for(submit: Run, name: str) -> None:
    code, _, said = submit("a.yaml", "--system", "slurm", "--time", "0:30", "--after", name, "--dry-run")
    assert (code, name in said) == (0, True)


def test_more_nodes_than_machines_are_fine_where_the_file_names_no_machines(site: Path, submit: Run) -> None:
    (site / "jobs.yaml").write_text(JOBS.replace("machines: [{count: 4}]\n", ""))
    words = ("jobs.yaml", "--system", "slurm", "--time", "0:30", "--dry-run", "--nodes", "10")
    assert submit(*words)[0] == 0


def test_a_path_that_begins_with_a_dash_is_no_option_of_the_run(site: Path, submit: Run) -> None:
    (site / "-dash.yaml").write_text(CONFIG)
    words = ("./-dash.yaml", "--system", "slurm", "--time", "0:30", "--dry-run", "--output", "./-out")
    code, shown, _ = submit(*words)
    (line,) = [line for line in shown.splitlines() if line.startswith("words=")]
    assert (code, line) == (0, "words=(run ./-dash.yaml --output ./-out) output=./-out")


def test_more_ranks_than_cores_of_a_node_are_refused(site: Path, submit: Run) -> None:
    (site / "site.yaml").write_text("system: slurm\ncores_per_node: 2\n")
    code, shown, said = submit("a.yaml", "--time", "0:30", "--dry-run")
    assert (code, shown) == (2, "")
    assert f"4 ranks on a node, but {site}/site.yaml has cores_per_node: 2; give fewer slots.per_node" in said


@pytest.mark.parametrize(
    ("device", "gpus", "is_refused"),
    [
        ("gpu", 1, True),
        ("auto", 1, True),
        ("gpu", 0, True),
        ("gpu", 2, False),
        ("auto", 0, False),
        ("cpu", 1, False),
    ],
)
def test_more_slots_than_gpus_of_a_node_are_refused(
    site: Path, submit: Run, device: str, gpus: int, is_refused: bool
) -> None:
    (site / "site.yaml").write_text(f"system: slurm\ngpus_per_node: {gpus}\n")
    changes = ("--set", f"slots.device={device}", "--set", "backend={name: tensorflow}")
    code, _, said = submit("a.yaml", *changes, "--time", "0:30", "--dry-run")
    assert (code == 2) == is_refused, said
    sentence = f"2 slots on a node, but {site}/site.yaml has gpus_per_node: {gpus}; give fewer slots.per_node"
    assert (sentence in said) == is_refused


@pytest.mark.parametrize("gpus", ["", "gpus_per_node: 0\n"])
def test_slots_of_cores_ask_for_no_gpus(site: Path, submit: Run, gpus: str) -> None:
    (site / "site.yaml").write_text(f"system: slurm\ncores_per_node: 8\n{gpus}")
    changes = ("--set", "slots={per_node: auto, device: gpu}", "--set", "backend={name: tensorflow}")
    code, shown, _ = submit("a.yaml", *changes, "--time", "0:30", "--dry-run")
    assert (code, "--ntasks-per-node=8" in shown, "gpus" in shown.partition("words=")[0]) == (0, True, False)


def test_slots_follow_the_cores_of_the_site(site: Path, submit: Run) -> None:
    (site / "site.yaml").write_text("system: slurm\ncores_per_node: 4\n")
    auto = ("--set", "slots={per_node: auto}")
    code, shown, _ = submit("a.yaml", *auto, "--time", "0:30", "--dry-run", "--json")
    assert (code, json.loads(shown)["job"]["ranks_per_node"]) == (0, 4)


def test_a_first_site_file_is_written_once(site: Path, submit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCBAL_SITE", str(site / "new.yaml"))
    assert submit("--write-site")[0] == 2, "no batch system is here"
    code, shown, _ = submit("--write-site", "--system", "flux")
    assert (code, shown) == (
        0,
        f"{site}/new.yaml: written; read it, and complete account, modules and options; the batch system did "
        "not tell partition, cores_per_node, gpus_per_node\n",
    )
    assert submit("--write-site", "--system", "flux")[0] == 2
