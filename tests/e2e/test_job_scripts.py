"""The job scripts, run by bash with stand-ins for the launchers: what they start, and how they end.

This shows that the scripts do what they say. It shows nothing about a real Slurm, PBS, LSF or Flux.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import job_scripts
import pytest

from hpcbal.cluster.systems import SYSTEMS, BatchJob, SiteHabits
from hpcbal.cluster.systems.script import render, render_compare
from hpcbal.telemetry.files.batch_jobs import BatchRecord, append_batch_job, read_batch_jobs

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
"""Only what hangs takes so long."""
LAUNCHER_OF_SCRIPT = {
    "slurm/one_node.sbatch": "srun",
    "slurm/several_nodes.sbatch": "srun",
    "lsf/one_node.lsf": "mpirun",
    "lsf/several_nodes.lsf": "jsrun",
    "pbs/one_node.pbs": "mpirun",
    "pbs/several_nodes.pbs": "mpirun",
    "flux/one_node.flux": "flux",
    "flux/several_nodes.flux": "flux",
}
DIFFERENT = [*(name for name in sorted(LAUNCHER_OF_SCRIPT) if "several" in name), "lsf/one_node.lsf"]
"""The others differ from these in settings only."""
SLURM_SCRIPTS = pytest.mark.parametrize("script", [name for name in DIFFERENT if name.startswith("slurm")])
# Stays until it is signalled, as ranks do that write a checkpoint first.
STOPS_CLEANLY = (
    'trap \'sleep 0.3; echo signalled >>"$CALLS"; echo 75 >>"$HPCBAL_END_FILE"; exit 75\' USR2; '
    'echo undecided >>"$HPCBAL_END_FILE"; touch started; while :; do sleep 0.05; done'
)


@dataclass
class Site:
    """A submit folder with an environment, and stand-ins for the site's commands."""

    folder: Path
    calls: Path

    def add(self, name: str, text: str) -> None:
        """A stand-in that notes how it was called."""
        if name == "flux":  # launcher and scheduler in one
            shown = f"cat {self.folder}/shown 2>/dev/null; exit"
            text = f"case $1$2 in --parentjobs) {shown} ;; --parentbatch) echo f43; exit ;; esac\n{text}"
        path = self.folder / "bin" / name
        path.write_text(f'#!/usr/bin/env bash\nprintf \'%s\\n\' "{name} $*" >>"$CALLS"\n{text}\n')
        path.chmod(0o755)

    def start(
        self, script: str | Path, *arguments: str, folder: Path | None = None, **more: str
    ) -> subprocess.Popen[str]:
        """Start a job script as the batch system does, submitted from a folder (the site's own if None)."""
        folder = folder or self.folder
        environ = os.environ | {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "CALLS": str(self.calls),
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_ID": "42",
            "LSB_JOBID": "42",
            "LSB_JOBINDEX": "0",
            "PBS_JOBID": "42.server",
            "PBS_O_WORKDIR": str(folder),
            "PBS_NODEFILE": "nodes",
            "LSB_DJOB_HOSTFILE": "nodes",
            "FLUX_ENCLOSING_ID": "f42",
            "SLURM_JOB_NUM_NODES": "4",
            "SLURM_NTASKS": "24",
            "SLURM_NTASKS_PER_NODE": "6",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_GPUS_PER_NODE": "4",
            "LS_SUBCWD": str(folder),
            "HPCBAL_ARGUMENTS": " ".join(arguments),
        }
        takes_arguments = str(script).endswith((".sbatch", ".flux"))
        return subprocess.Popen(
            ["bash", ROOT / script, *(arguments if takes_arguments else ())],
            cwd=folder,
            env=environ | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def requeues(self) -> list[str]:
        """The jobs that were requeued, and scripts that were submitted to continue one."""
        requeued = [line for line in self.called("scontrol") if line.startswith("requeue")]
        return (
            requeued
            + self.called("qsub")
            + [line for line in self.called("flux") if line.startswith("--parent batch")]
        )

    def launched(self, script: str) -> list[str]:
        """The argument lines of the script's launcher."""
        lines = self.called(LAUNCHER_OF_SCRIPT[script])
        return [line for line in lines if not line.startswith("--parent ")]

    def called(self, name: str) -> list[str]:
        """The argument lines of a stand-in's calls."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


ENDS = 'echo "${LAUNCHER_STATUS:-0}" >>"$HPCBAL_END_FILE"; exit "${LAUNCHER_STATUS:-0}"'
REAL_HPCBAL = f'PYTHONPATH={ROOT} exec {sys.executable} -m hpcbal "$@"'
# Stands in for `hpcbal launcher`, which takes a third of a second, but not for what it says of ends of runs.
QUICK_HPCBAL = (
    'if [[ $2 == --starting ]]; then eval "$WHILE_CHECKING"; echo "${ENDS_AT:-0}"; exit; fi; '
    f'if [[ $2 == --ended || $2 == --continues ]]; then {REAL_HPCBAL}; fi; echo "$2 --nodes=4"'
)


def make_venv(venv: Path, hpcbal: str = QUICK_HPCBAL) -> None:
    """An environment that can be moved, and whose activation uses a variable that is not set."""
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / "bin" / "activate").write_text(
        'PATH=$(dirname "${BASH_SOURCE[0]}"):$PATH; export ACTIVATED="1$NOT_SET"\n'
    )
    program = venv / "bin" / "hpcbal"
    program.write_text(f"#!/usr/bin/env bash\n{hpcbal}\n")
    program.chmod(0o755)


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def edited(script: str, folder: Path, **site: str) -> Path:
    """A copy of a job script with other values in its block `site`."""
    text = (ROOT / script).read_text()
    for name, value in site.items():
        text, number = re.subn(rf"(?m)^{name}=\S+", lambda _, new=f"{name}={value}": new, text)
        assert number == 1, name
    copy = folder / Path(script).name
    copy.write_text(text)
    return copy


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site where every launcher ends at once with 0."""
    (tmp_path / "bin").mkdir()
    make_venv(tmp_path / ".venv")
    made = Site(tmp_path, tmp_path / "calls")
    for name in ("srun", "mpirun", "jsrun"):
        made.add(name, f"[[ ${{ACTIVATED:-}} == 1 ]] || exit 99; {ENDS}")
    made.add("flux", f"[[ ${{ACTIVATED:-}} == 1 ]] || exit 99; {ENDS}")
    made.add("scontrol", ":")
    made.add("qsub", "echo 43.server")
    for name in ("qstat", "bjobs"):
        made.add(name, f"cat {made.folder}/shown 2>/dev/null")
    return made


@pytest.fixture(params=DIFFERENT)
def script(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("system", ["slurm", "pbs", "lsf", "flux"])
def test_the_scripts_of_a_system_differ_only_in_their_settings(system: str) -> None:
    def lines(script: str) -> list[str]:
        text = (ROOT / script).read_text().replace("one_node", "several_nodes")
        settings = r"#|(LAUNCHER|NUM_NODES|RANKS_PER_NODE|CORES_PER_RANK|GPUS_PER_NODE)=\w+( |$)"
        return [line for line in text.splitlines() if not re.match(settings, line)]

    one, several = (lines(name) for name in sorted(LAUNCHER_OF_SCRIPT) if name.startswith(system))
    assert one == several
    assert len(one) > 80


@pytest.mark.parametrize("script", sorted(LAUNCHER_OF_SCRIPT))
def test_starts_the_run_in_the_activated_environment(site: Site, script: str) -> None:
    job = site.start(script, "a.yaml", "--output", "out")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, reported
    (line,) = site.launched(script)
    assert line.endswith("hpcbal run a.yaml --output out")


@pytest.mark.parametrize("script", sorted(LAUNCHER_OF_SCRIPT))
def test_without_a_config_the_usage_is_printed(site: Site, script: str) -> None:
    job = site.start(script)
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 2
    assert reported.startswith("usage: ")
    assert site.launched(script) == []


@pytest.mark.parametrize("status", [0, 1, 75])
def test_exits_with_the_code_of_the_run(site: Site, script: str, status: int) -> None:
    job = site.start(script, "a.yaml", LAUNCHER_STATUS=str(status))
    job.communicate(timeout=PATIENCE_S)
    assert job.returncode == status
    assert len(site.requeues) == (status == 75 and not script.startswith("lsf"))


@pytest.mark.parametrize(("noted", "status"), [("75", 75), ("undecided", 1), ("", 75)])
def test_a_process_that_ends_itself_with_75_is_not_started_again(
    site: Site, script: str, noted: str, status: int
) -> None:
    """Where rank 0 cannot write the file, 75 is trusted."""
    site.add(
        LAUNCHER_OF_SCRIPT[script],
        f'printf %s "{noted}" >>"$HPCBAL_END_FILE"; echo "$HPCBAL_END_FILE" >named; exit 75',
    )
    job = site.start(script, "a.yaml")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == status
    assert ("ended itself with code 75" in reported) == (status == 1)
    assert len(site.requeues) == (status == 75 and not script.startswith("lsf"))
    assert Path((site.folder / "named").read_text().strip()).exists() == (status == 75)  # for the next start


@pytest.mark.parametrize("noted", ["", "undecided"])
def test_success_is_what_the_run_has_recorded(site: Site, script: str, noted: str) -> None:
    """`mpirun` also ends with 0 when it has lost a node; LSF starts again what exits with 75."""
    site.add(LAUNCHER_OF_SCRIPT[script], f'printf %s "{noted}" >>"$HPCBAL_END_FILE"')
    job = site.start(script, "a.yaml")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == (75 if noted and script.startswith("lsf") else 1)
    assert "the launcher has ended with 0, but the run has recorded no end" in reported


def test_a_recorded_end_outweighs_the_code_of_the_launcher(site: Site, script: str) -> None:
    site.add(LAUNCHER_OF_SCRIPT[script], 'echo 3 >>"$HPCBAL_END_FILE"; exit 139')
    job = site.start(script, "a.yaml")
    job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, site.requeues) == (3, [])


@SLURM_SCRIPTS
@pytest.mark.parametrize("code", [0, 14, 137])
def test_starts_that_lost_a_rank_are_repeated_while_they_get_further(
    site: Site, script: str, code: int
) -> None:
    facts_of_starts = ("undecided", "undecided\\nprogress", "undecided", "undecided")
    for start, (facts, requeues) in enumerate(zip(facts_of_starts, (1, 2, 3, 3), strict=True)):
        site.add("srun", f'printf "{facts}\\n" >>"$HPCBAL_END_FILE"; exit {code}')
        job = site.start(script, "a.yaml", SLURM_RESTART_COUNT=str(start))
        _, reported = job.communicate(timeout=PATIENCE_S)
        assert job.returncode == 1
        assert "was lost" in reported
        assert len(site.requeues) == requeues, facts
    assert "two starts in a row have got no further" in reported


def test_two_starts_that_are_stopped_before_they_get_further_end_the_job(site: Site, script: str) -> None:
    is_again: list[bool] = []
    for start, facts in enumerate(("undecided", "undecided\\nprogress", "undecided", "undecided")):
        site.add(LAUNCHER_OF_SCRIPT[script], f'printf "{facts}\\n75\\n" >>"$HPCBAL_END_FILE"; exit 75')
        chain = {"HPCBAL_CHAIN": "f42"} if start and script.startswith("flux") else {}
        job = site.start(script, "a.yaml", SLURM_RESTART_COUNT=str(start), **chain)
        _, reported = job.communicate(timeout=PATIENCE_S)
        again = job.returncode == 75 if script.startswith("lsf") else len(site.requeues) > sum(is_again)
        is_again.append(again)
    assert is_again == [True, True, True, False]
    assert "two starts in a row have got no further" in reported


@SLURM_SCRIPTS
def test_a_signal_that_comes_with_the_start_is_ignored_once(site: Site, script: str) -> None:
    """With a time limit that is not longer than the lead of the signal."""
    site.add("srun", f'echo "end $HPCBAL_END_TIME" >>"$CALLS"; {STOPS_CLEANLY}')
    end_s = str(int(time.time()) + 300)
    job = site.start(script, "a.yaml", ENDS_AT=end_s)
    wait_for_file(site.folder / "started")
    assert site.called("end") == [end_s], "the run stops by itself before"
    assert job.stderr is not None
    assert "ignoring this signal; the run stops by itself a minute before the end" in job.stderr.readline()
    job.send_signal(signal.SIGUSR2)
    assert "signal ignored" in job.stderr.readline()
    assert "signalled" not in site.calls.read_text()
    for _ in range(10):  # bash drops a signal that comes while it handles the one before
        job.send_signal(signal.SIGUSR2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(timeout=3)
            break
    job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 75
    assert "signalled" in site.calls.read_text()


@SLURM_SCRIPTS
def test_a_job_ends_after_its_launcher_even_if_wait_returns_before(
    site: Site, script: str, tmp_path: Path
) -> None:
    """Now and then bash ends `wait` with 128 + 12 and never runs the trap, if one USR2 follows another."""
    copy = edited(script, tmp_path)
    early = 'wait() { ((${waits:=0})) || { waits=1; return 140; }; builtin wait "$@"; }\n'
    copy.write_text(copy.read_text().replace("\nchild=$!\n", f"\nchild=$!\n{early}", 1))
    site.add("srun", f"sleep 1; touch over; {ENDS}")
    job = site.start(copy, "a.yaml")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert early in copy.read_text()
    assert (job.returncode, reported) == (0, "")
    assert (site.folder / "over").exists()


@pytest.mark.parametrize("option", ["--signal=B:USR2@60", "--signal B:SIGUSR2@60"])
def test_the_last_lead_of_the_signal_counts(site: Site, option: str, tmp_path: Path) -> None:
    """An option behind `--` comes last, and Slurm takes the last one."""
    copy = edited("slurm/one_node.sbatch", tmp_path)
    copy.write_text(copy.read_text().replace("#\n", f"#SBATCH {option}\n#\n", 1))
    job = site.start(copy, "a.yaml", ENDS_AT=str(int(time.time()) + 300))
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, reported) == (0, "")


@pytest.mark.parametrize(
    ("script", "shown", "ends_s"),
    [
        ("slurm/one_node.sbatch", "JobId=42 JobState=RUNNING EndTime=2000000000 NodeList=n1", 2_000_000_000),
        (
            "pbs/one_node.pbs",
            "Job Id: 42.server\n    job_state = R\n    ctime = Mon Nov 30 08:00:00 2037\n"
            "    Resource_List.walltime = 04:00:00\n    stime = Mon Nov 30 09:00:00 2037",
            time.mktime((2037, 11, 30, 13, 0, 0, 0, 0, -1)),
        ),
        ("lsf/one_node.lsf", "42|0|RUN|-|-|1:00 L|n1|{now}", None),
        ("flux/one_node.flux", '{{"state": "RUN", "expiration": 2000000000.5}}', 2_000_000_000),
    ],
)
@pytest.mark.parametrize("kind", ["submitted", "shipped"])
def test_a_job_learns_when_it_ends_and_that_an_older_one_had_its_number(
    site: Site, script: str, shown: str, ends_s: float | None, kind: str
) -> None:
    """By what its batch system shows; numbers recur, and a job that is killed leaves its story."""
    make_venv(site.folder / ".venv", REAL_HPCBAL)
    (site.folder / "shown").write_text(shown.format(now=time.strftime("%b %d %H:%M")))
    site.add("scontrol", f"[[ $1 != --oneliner ]] || cat {site.folder}/shown")
    site.add(LAUNCHER_OF_SCRIPT[script], f'echo "end $HPCBAL_END_TIME" >>"$CALLS"; {ENDS}')
    folder = site.folder / "out" if kind == "submitted" else site.folder
    folder.mkdir(exist_ok=True)
    story = folder / f".hpcbal-{'f42' if script.startswith('flux') else '42'}.end"
    story.write_text("start\nundecided\nstart\nundecided\n")
    os.utime(story, (1e9, 1e9))
    started = of_site(site, script.partition("/")[0], SiteHabits()) if kind == "submitted" else script
    began_s = time.time()
    job = site.start(started, "a.yaml")
    printed, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, printed + reported
    (found,) = map(int, site.called("end"))
    assert abs(found - (began_s + 3600 if ends_s is None else ends_s)) <= (30 if ends_s is None else 1)


def test_mpiexec_gets_a_signal_that_it_passes_on(site: Site, tmp_path: Path) -> None:
    """That of MPICH and Intel MPI dies of USR2, and takes the ranks along."""
    site.add("mpiexec", STOPS_CLEANLY.replace("USR2", "USR1"))
    job = site.start(edited("pbs/one_node.pbs", tmp_path, LAUNCHER="mpiexec"), HPCBAL_ARGUMENTS="a.yaml")
    wait_for_file(site.folder / "started")
    job.send_signal(signal.SIGUSR2)
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 75, reported
    assert "signalled" in site.calls.read_text()


def of_site(site: Site, system: str, habits: SiteHabits) -> str:
    """The script of `hpcbal submit` for such a site."""
    job = BatchJob(
        "net",
        num_nodes=1,
        ranks_per_node=3,
        time_s=3600,
        tasks=(("run", "a.yaml"),),
        outputs=("out",),
        max_restarts=9,
        script=str(site.folder / "batch.sh"),
        site=replace(habits, venv=str(site.folder / ".venv")),
    )
    Path(job.script).write_text(render(SYSTEMS[system], job))
    return job.script


@pytest.mark.parametrize("system", ["slurm", "lsf"])
def test_lines_behind_a_run_do_not_change_how_it_ends(site: Site, system: str) -> None:
    lines = (
        "false",
        "status=9 next=end output=x MAX_RESTARTS=0",
        "echo after $SLURM_RESTART_COUNT >>$CALLS",
        "exit 3",
    )
    environ = {"LAUNCHER_STATUS": "75", "SLURM_RESTART_COUNT": "1"}
    job = site.start(of_site(site, system, SiteHabits(after=lines)), **environ)
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 75, reported
    assert "a line of after in the site file has failed with 1 (last command: false)\n" in reported
    assert site.calls.read_text().count("\nafter\n") == 1
    assert len(site.requeues) == (system == "slurm")


@pytest.mark.parametrize(
    ("habits", "said"),
    [
        (
            SiteHabits(before=("output=x", "false")),
            "a line of before in the site file has ended with 1 (last command: false)",
        ),
        (SiteHabits(before=("bash -c 'exit 75'",)), "has ended with 75 (last command: bash -c 'exit 75')"),
        (SiteHabits(before=("f() { false; echo no; }", "f")), "has ended with 1 (last command: false)"),
        (
            SiteHabits(before=("f() { (exit 75); }", "f")),
            "a line of before in the site file has ended with 75 ",
        ),
        (SiteHabits(before=("exit 75",)), "has ended with 75 (last command: exit 75)"),
        (SiteHabits(before=("cd /not/there",)), "has ended with 1 (last command: cd /not/there)"),
        (
            SiteHabits(before=("module() { return 75; }",), modules=("gcc",)),
            "module load has ended with 75 (last command: return 75)",
        ),
        (
            SiteHabits(before=("source() { return 75; }",)),
            "the activation of the environment has ended with 75 (last command: return 75)",
        ),
    ],
)
def test_what_fails_in_front_of_a_run_is_named(site: Site, habits: SiteHabits, said: str) -> None:
    """LSF would start again what ends with 75."""
    job = site.start(of_site(site, "lsf", habits))
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert reported.count("the job ends here, because ") == 1
    assert (job.returncode, said in reported, site.called("mpirun")) == (2, True, [])


def test_the_comparison_of_an_array_says_why_it_could_not_begin(site: Site) -> None:
    job = BatchJob(
        "net",
        num_nodes=1,
        ranks_per_node=1,
        time_s=600,
        compare=("compare", "a", "b"),
        site=SiteHabits(before=("f() { false; }", "f"), venv=str(site.folder / ".venv")),
    )
    script = site.folder / "compare.sh"
    script.write_text(render_compare(SYSTEMS["slurm"], job, str(site.folder)))
    failed = site.start(script)
    _, reported = failed.communicate(timeout=PATIENCE_S)
    assert (
        failed.returncode,
        "before in the site file has ended with 1 (last command: false)" in reported,
    ) == (2, True)
    script.write_text(
        render_compare(SYSTEMS["slurm"], replace(job, site=replace(job.site, before=())), str(site.folder))
    )
    compared = site.start(script)
    printed, reported = compared.communicate(timeout=PATIENCE_S)
    assert (compared.returncode, printed, reported) == (0, "a --nodes=4\n", "")


@pytest.mark.parametrize("script", ["slurm/one_node.sbatch", "lsf/one_node.lsf"])
def test_a_container_that_is_not_there_is_no_reason_to_come_back(
    site: Site, script: str, tmp_path: Path
) -> None:
    copy = edited(script, tmp_path, CONTAINER="(aptainer exec a.sif)")
    job = site.start(copy, "a.yaml")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, site.launched(script)) == (2, [])
    assert "'hpcbal launcher --starting' has ended with 127" in reported


def test_a_cancel_between_the_check_and_the_ranks_is_kept(site: Site) -> None:
    """Also in a job that is so short that Slurm signals it at once, which is ignored once."""
    site.add("srun", STOPS_CLEANLY)
    (site.folder / "out").mkdir()
    job = site.start(
        of_site(site, "slurm", SiteHabits()),
        ENDS_AT=str(int(time.time()) + 300),
        WHILE_CHECKING="touch out/batch.cancel; kill -USR2 $(ps -o ppid= -p $PPID)",
    )
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 75, reported
    assert "signalled" in site.calls.read_text()
    assert "ignoring this signal" not in reported


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize("system", ["pbs", "flux"])
def test_a_job_that_continues_is_noted_whatever_else_the_site_prints(
    site: Site, system: str, is_noted: bool
) -> None:
    first, second = {"pbs": ("42.server", "43.server"), "flux": ("f42", "f43")}[system]
    script, output = of_site(site, system, SiteHabits()), site.folder / "out"
    record = BatchRecord(system, first, 1.0, str(site.folder), script, "hpcbal-42.log", 1, 3, 3600.0, 9)
    append_batch_job(output, record if is_noted else replace(record, id="7"))
    site.add("mpirun", r'printf "undecided\nprogress\n75\n" >>"$HPCBAL_END_FILE"; exit 75')
    site.add("qsub", 'echo "Note: 5 hours left"; echo 43.server')
    site.add("flux", r'printf "undecided\nprogress\n75\n" >>"$HPCBAL_END_FILE"; exit 75')
    job = site.start(script)
    printed, reported = job.communicate(timeout=PATIENCE_S)
    log = (site.folder / "hpcbal-42.log").read_text() if system == "pbs" else printed + reported
    assert job.returncode == 75, log
    assert "could not be started again" not in log
    *_, last = read_batch_jobs(output)
    if is_noted:
        name = "hpcbal-43.log" if system == "pbs" else "hpcbal-f43.log"
        assert (last.id, last.continues, last.log) == (second, first, str(site.folder / name))
    else:
        assert last.id == "7"
        assert f"the job is submitted again, but its number is not noted ({system}: " in log
        assert f"has no job {first}, which job {second} continues" in log


@SLURM_SCRIPTS
def test_a_task_of_an_array_has_its_own_arguments_and_is_requeued_alone(site: Site, script: str) -> None:
    task = {"SLURM_ARRAY_JOB_ID": "42", "SLURM_ARRAY_TASK_ID": "3", "LAUNCHER_STATUS": "75"}
    job = site.start(script, "a.yaml", "--set", "name=j%j", "--output", "runs/%A/%a", **task)
    job.communicate(timeout=PATIENCE_S)
    assert site.called("srun")[0].endswith("hpcbal run a.yaml --set name=j42 --output runs/42/3")
    assert site.requeues == ["requeue 42_3"]


@pytest.mark.parametrize("script", ["lsf/one_node.lsf", "lsf/several_nodes.lsf"])
def test_an_lsf_job_knows_its_numbers(site: Site, script: str) -> None:
    site.start(script, "a.yaml", "--output", "runs/%J/%I", LSB_JOBINDEX="3").communicate(timeout=PATIENCE_S)
    assert site.launched(script)[0].endswith("hpcbal run a.yaml --output runs/42/3")


@pytest.mark.parametrize("script", [name for name in LAUNCHER_OF_SCRIPT if name.startswith(("slurm", "lsf"))])
def test_the_job_stays_in_the_directory_that_was_chosen_for_it(site: Site, script: str) -> None:
    """As with `sbatch -D`; the environment is that of the directory of submission."""
    chosen = site.folder.parent / f"{site.folder.name}-chosen"
    chosen.mkdir()
    site.add(LAUNCHER_OF_SCRIPT[script], f"pwd >>$CALLS; {ENDS}")
    variables = {"SLURM_SUBMIT_DIR": str(site.folder), "LS_SUBCWD": str(site.folder)}
    job = site.start(script, "a.yaml", folder=chosen, **variables)
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, reported
    assert f"\n{chosen}\n" in site.calls.read_text()


@SLURM_SCRIPTS
def test_a_requeue_that_fails_keeps_the_exit_code(site: Site, script: str) -> None:
    site.add("scontrol", "[[ $1 == show ]]")
    job = site.start(script, "a.yaml", LAUNCHER_STATUS="75")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 75
    assert "the job could not be started again and ends here; submit it again to continue" in reported


def test_a_signal_before_the_ranks_catch_it_is_kept(site: Site, script: str) -> None:
    """The launcher would die of it, as any program does that has not installed a handler."""
    launcher = LAUNCHER_OF_SCRIPT[script]
    site.add(launcher, f"touch early; until [[ -e go ]]; do sleep 0.05; done; {STOPS_CLEANLY}")
    job = site.start(script, "a.yaml")
    wait_for_file(site.folder / "early")
    job.send_signal(signal.SIGUSR2)
    (site.folder / "go").touch()
    job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 75
    assert "signalled" in site.calls.read_text()


def test_passes_the_signal_on_and_waits_for_the_checkpoints(site: Site, script: str) -> None:
    site.add(LAUNCHER_OF_SCRIPT[script], STOPS_CLEANLY)
    job = site.start(script, "a.yaml")
    wait_for_file(site.folder / "started")
    job.send_signal(signal.SIGUSR2)
    job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 75
    assert "signalled" in site.calls.read_text()
    assert len(site.requeues) == (not script.startswith("lsf"))


@SLURM_SCRIPTS
def test_a_job_is_not_requeued_for_ever(site: Site, script: str) -> None:
    job = site.start(script, "a.yaml", LAUNCHER_STATUS="75", SLURM_RESTART_COUNT="50")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 75
    assert "the job was started again 50 times, 50 are allowed, and ends here" in reported
    assert site.requeues == []


@pytest.mark.parametrize("system", ["LSF", "PBS", "Flux"])
def test_scripts_that_no_real_system_has_run_say_so(system: str) -> None:
    for name in ("one_node", "several_nodes"):
        text = (ROOT / system.lower() / f"{name}.{system.lower()}").read_text()
        assert f"\n# Untested on {system}: " in text


def test_scripts_are_what_hpcbal_submit_writes() -> None:
    found = {path: path.read_text() for path in job_scripts.scripts()}
    assert found == job_scripts.scripts(), "run python scripts/job_scripts.py"


@pytest.mark.parametrize("name", ["one_node", "several_nodes"])
def test_flux_run_gets_whole_nodes(site: Site, name: str) -> None:
    site.start(f"flux/{name}.flux", "a.yaml", "--set", "name=j%j").communicate(timeout=PATIENCE_S)
    (line,) = site.launched(f"flux/{name}.flux")
    assert line.startswith(f"run --nodes={1 if name == 'one_node' else 4} --tasks-per-node=6 --exclusive ")
    assert line.endswith(" hpcbal run a.yaml --set name=jf42")


@pytest.mark.parametrize("script", ["pbs/one_node.pbs", "flux/one_node.flux"])
def test_a_job_whose_system_does_not_signal_stops_in_time(site: Site, script: str, tmp_path: Path) -> None:
    """The lead is so long that the script has to signal itself some seconds after its start."""
    site.add(LAUNCHER_OF_SCRIPT[script], STOPS_CLEANLY)
    copy = edited(script, tmp_path)
    text = (
        copy.read_text().replace("  lead=300\n", f"  lead={4 * 3600 - 3}\n").replace("lead + 60", "lead + 1")
    )
    copy.write_text(text)
    ends_at = str(int(time.time()) + 4 * 3600)
    job = site.start(copy, "a.yaml", HPCBAL_ARGUMENTS="a.yaml", ENDS_AT=ends_at)
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, "ignoring this signal" in reported) == (75, False)
    assert "signalled" in site.calls.read_text()
    (line,) = site.requeues
    assert line.endswith(copy.name if script.startswith("pbs") else f"{copy.name} a.yaml")


def test_a_pbs_job_that_is_submitted_again_knows_whose_work_it_continues(site: Site, tmp_path: Path) -> None:
    """Three starts of one array's job, of which each has a number of its own."""
    ends = r'printf "undecided\nprogress\n75\n" >>"$HPCBAL_END_FILE"; exit 75'
    site.add("mpirun", f'echo "ranks see ${{HPCBAL_CHAIN-none}}" >>"$CALLS"; {ends}')
    site.add("qsub", 'echo "chain $HPCBAL_CHAIN task $HPCBAL_TASK" >>"$CALLS"; echo 43.server')
    copy = edited("pbs/one_node.pbs", tmp_path, MAX_RESTARTS="2")
    environ = {"PBS_JOBID": "42[3].server", "PBS_ARRAY_INDEX": "3"}
    for next_id in ("43.server", "44.server", ""):
        job = site.start(
            copy, "a.yaml", "--output", "runs/%a", HPCBAL_ARGUMENTS="a.yaml --output runs/%a", **environ
        )
        _, reported = job.communicate(timeout=PATIENCE_S)
        assert job.returncode == 75
        environ = {"HPCBAL_CHAIN": "42[3]", "HPCBAL_TASK": "3", "PBS_JOBID": next_id}
    assert "the job was started again 2 times, 2 are allowed, and ends here" in reported
    assert site.called("chain") == ["42[3] task 3"] * 2
    assert site.called("ranks") == ["see none"] * 3, "what they submit continues nothing"
    assert [line.rpartition(" ")[2] for line in site.called("mpirun")] == ["runs/3"] * 3
    assert [path.name for path in tmp_path.glob(".hpcbal-*")] == []


def test_jsrun_gets_one_resource_set_per_node(site: Site) -> None:
    site.start("lsf/several_nodes.lsf", "a.yaml").communicate(timeout=PATIENCE_S)
    (line,) = site.called("jsrun")
    assert line.startswith("--nrs 4 --rs_per_host 1 --tasks_per_rs 8 ")


@pytest.mark.parametrize("verb", ["profile", "evaluate"])
def test_scripts_know_other_verbs(site: Site, script: str, verb: str) -> None:
    job = site.start(script, verb, "a.yaml")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, reported
    (line,) = site.launched(script)
    assert line.endswith(f"hpcbal {verb} a.yaml")


def test_the_environment_is_found_from_other_folders(site: Site, script: str, tmp_path: Path) -> None:
    (tmp_path / ".venv").rename(tmp_path / "environment")
    elsewhere = tmp_path / "work" / "of" / "mine"
    elsewhere.mkdir(parents=True)
    lost = site.start(script, "a.yaml", folder=elsewhere)
    _, reported = lost.communicate(timeout=PATIENCE_S)
    assert (lost.returncode, site.launched(script)) == (2, [])
    assert "set HPCBAL_VENV" in reported
    named = site.start(script, "a.yaml", folder=elsewhere, HPCBAL_VENV=str(tmp_path / "environment"))
    _, reported = named.communicate(timeout=PATIENCE_S)
    assert named.returncode == 0, reported
    (tmp_path / "environment").rename(tmp_path / "work" / ".venv")
    above = site.start(script, "a.yaml", folder=elsewhere)
    _, reported = above.communicate(timeout=PATIENCE_S)
    assert above.returncode == 0, reported


@pytest.mark.parametrize("name", ["clone", "a clone"])
def test_slurm_knows_the_clone_that_the_script_came_from(site: Site, name: str, tmp_path: Path) -> None:
    clone = tmp_path / name
    make_venv(clone / ".venv")
    (tmp_path / ".venv").rename(tmp_path / "not-here")
    site.add(
        "scontrol", f"[[ $1 == show ]] && echo '   Command={clone}/slurm/one_node.sbatch a.yaml --set b=1'"
    )
    job = site.start("slurm/one_node.sbatch", "a.yaml", "--set", "b=1")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, reported


@pytest.mark.parametrize("name", ["one_node", "several_nodes"])
def test_plan_prints_the_line_that_the_job_uses(site: Site, name: str, tmp_path: Path) -> None:
    num_nodes = {"one_node": 1, "several_nodes": 4}[name]
    make_venv(tmp_path / ".venv", REAL_HPCBAL)
    (tmp_path / "a.yaml").write_text(
        "schema: 1\nslots: {per_node: 4, device: gpu}\n"
        "defaults: {batch_size: 8, optimizer: {name: sgd, learning_rate: 0.1}, stop: {max_epochs: 1}}\n"
        "dnns: [{name: a, model: 'hpcbal.models:resnet', args: {depth: 8}}]\n"
        "schedule: {profiling: {rates: profile.json}}\n"
    )
    rates = {"a": {"dnn": "a", "slots_per_node": 4, "samples_per_s": {"1": 100.0}}}
    (tmp_path / "profile.json").write_text(json.dumps({"format": 1, "entries": rates}))
    site.start(f"slurm/{name}.sbatch", "a.yaml", SLURM_JOB_NUM_NODES=str(num_nodes)).communicate(
        timeout=PATIENCE_S
    )
    arguments = ["--nodes", str(num_nodes), "--cpus-per-task", "8", "--samples", "80", "--json"]
    planned = subprocess.run(
        [tmp_path / ".venv" / "bin" / "hpcbal", "plan", "a.yaml", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert planned.returncode == 0, planned.stderr
    assert [f"srun {line}" for line in site.called("srun")] == json.loads(planned.stdout)["launch"][1:]


def test_a_container_needs_no_environment_and_starts_the_ranks(
    site: Site, script: str, tmp_path: Path
) -> None:
    (tmp_path / ".venv").rename(tmp_path / "inside")
    site.add(
        "apptainer", f'echo "== a banner =="; PATH={tmp_path}/inside/bin:$PATH; "${{@:4}}" && echo 5 bytes'
    )
    launcher = LAUNCHER_OF_SCRIPT[script]
    site.add(launcher, ENDS)
    job = site.start(edited(script, tmp_path, CONTAINER="(apptainer exec --nv a.sif)"), "a.yaml")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, reported
    (line,) = site.launched(script)
    assert line.endswith("apptainer exec --nv a.sif hpcbal run a.yaml")


def test_modules_may_use_variables_that_are_not_set(site: Site, script: str, tmp_path: Path) -> None:
    module = 'module() { echo "module $*$ALSO_NOT_SET" >>"$CALLS"; }'
    copy = edited(script, tmp_path, MODULES="(openmpi/5 cuda/12)")
    copy.write_text(copy.read_text().replace("\nset -eo", f"\n{module}\nset -eo"))
    job = site.start(copy, "a.yaml")
    _, reported = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, reported
    assert site.called("module") == ["load openmpi/5 cuda/12"]


@SLURM_SCRIPTS
def test_mpirun_and_more_options_can_be_chosen(site: Site, script: str, tmp_path: Path) -> None:
    make_venv(tmp_path / ".venv", REAL_HPCBAL)
    copy = edited(script, tmp_path, LAUNCHER="mpirun", OPTIONS="(--mca pml ucx)")
    site.start(copy, "a.yaml").communicate(timeout=PATIENCE_S)
    (line,) = site.called("mpirun")
    assert line == "-n 24 --map-by ppr:6:node --bind-to none --mca pml ucx hpcbal run a.yaml"


@pytest.mark.parametrize("name", ["pbs", "flux"])
def test_a_job_that_no_signal_reaches_stops_when_it_is_cancelled(site: Site, name: str) -> None:
    """`hpcbal cancel` leaves a file, which the script of `hpcbal submit` looks for."""
    output = site.folder / "it's out"
    output.mkdir()
    make_venv(site.folder / ".venv", REAL_HPCBAL)
    site.add({"pbs": "mpirun", "flux": "flux"}[name], STOPS_CLEANLY)
    job = BatchJob(
        "net",
        num_nodes=1,
        ranks_per_node=3,
        time_s=3600,
        tasks=(("run", "a.yaml"),),
        outputs=(str(output),),
        max_restarts=9,
        log=str(site.folder / "job.log"),
        script=str(site.folder / "batch.sh"),
        site=SiteHabits(venv=str(site.folder / ".venv")),
    )
    Path(job.script).write_text(render(SYSTEMS[name], job))
    process = site.start(job.script)
    wait_for_file(site.folder / "started")
    (output / "batch.cancel").touch()
    _, reported = process.communicate(timeout=PATIENCE_S)
    reported += (site.folder / "job.log").read_text() if name == "pbs" else ""
    assert (process.returncode, site.requeues) == (75, []), reported
    assert "signalled" in site.calls.read_text()
    assert "cancelled by hpcbal cancel" in reported
