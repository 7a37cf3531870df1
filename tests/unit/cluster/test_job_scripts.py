"""The scripts of `hpcbal submit`: equal to golden files, accepted by shellcheck, with values quoted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import stand_in_schedulers
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.cluster.systems import SYSTEMS, BatchJob, SiteHabits
from hpcbal.cluster.systems.script import option_words, render, render_compare, word
from hpcbal.errors import InputError

GOLDEN = Path(__file__).parents[2] / "data" / "job_scripts"
ODD = 'it\'s a "$HOME" `x` \\ * @tasks@ #.yaml'
SITE = SiteHabits(
    account="proj-1",
    partition="gpu",
    modules=("gcc/13", "openmpi/5"),
    container=("apptainer", "exec", "--nv", "/shared/my images/hpcbal.sif"),
    launcher_options=("--mca", "pml", "ucx"),
    options=("--qos=high", "--comment=two words"),
    before=("export SCRATCH=/scratch/$USER",),
    after=('echo "ended with $status"',),
)
ARRAY = BatchJob(
    "nets",
    num_nodes=2,
    ranks_per_node=6,
    time_s=5430,
    cores_per_rank=8,
    gpus_per_node=4,
    tasks=(("run", ODD, "--output", "runs/a b/seed-0"), ("run", ODD, "--output", "runs/a b/seed-1")),
    outputs=("runs/a b/seed-0", "runs/a b/seed-1"),
    is_array=True,
    max_restarts=5,
    lead_s=240,
    log="",
    script="/home/me/runs/a b/batch.sh",
    compare=("compare", "runs/a b/seed-0", "runs/a b/seed-1", "--html", "runs/a b/compare.html"),
    after=("7", "8"),
    site=SITE,
)
ONE = BatchJob(
    "net",
    num_nodes=1,
    ranks_per_node=3,
    time_s=1800,
    tasks=(("run", "a.yaml", "--output", "runs/a"),),
    outputs=("runs/a",),
    log="/home/me/runs/a/hpcbal.log",
    script="/home/me/runs/a/batch.sh",
    exclusive=False,
    site=SiteHabits(venv="/home/me/.venv"),
)
COMPARE = replace(ONE, tasks=(), outputs=(), lead_s=0, compare=ARRAY.compare)


def renders() -> dict[str, str]:
    """All texts that the golden files hold, by name."""
    found = {}
    for name, system in SYSTEMS.items():
        found[f"array.{name}"] = render(system, ARRAY)
        found[f"one.{name}"] = render(system, ONE)
        found[f"compare.{name}"] = render_compare(system, COMPARE, "/home/me/it's here")
    found["jsrun.lsf"] = render(SYSTEMS["lsf"], replace(ARRAY, site=replace(SITE, launcher="jsrun")))
    return found


@pytest.mark.parametrize("name", renders())
def test_scripts_equal_the_golden_files(name: str) -> None:
    """After an intended change: `python tests/unit/cluster/test_job_scripts.py` writes them again."""
    assert renders()[name] == (GOLDEN / f"{name}.txt").read_text()


def test_shellcheck_accepts_all_scripts(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    for name, text in renders().items():
        (tmp_path / name).write_text(text)
    files = sorted(tmp_path.iterdir())
    done = subprocess.run(
        # SC2016: a `$` in single quotes is not expanded, which is what these values are about.
        [shellcheck, "--external-sources", "--exclude=SC2016", *files],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_place_of_a_template_is_left(name: str) -> None:
    text = render(SYSTEMS[name], ONE)
    assert re.findall(r"@[a-z_]+@", text) == []
    assert text.count(f"HPCBAL_VENV={ONE.site.venv}\n") == 1


@given(
    st.lists(st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]) | st.just(" "), max_size=12))
)
def test_words_are_read_back_by_the_shell(given_words: list[str]) -> None:
    line = " ".join(map(word, given_words))
    done = subprocess.run(
        ["bash", "-c", f'words=({line}); printf "%s\\0" "${{words[@]}}"'], capture_output=True, timeout=30
    )
    read = done.stdout.decode().split("\0")[:-1] if given_words else []
    assert read == given_words


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\x1b[31m"])
def test_what_cannot_be_printed_is_refused(text: str) -> None:
    for system in SYSTEMS.values():
        with pytest.raises(InputError, match="allowed in a job script"):
            render(system, replace(ONE, tasks=(("run", text),)))
        with pytest.raises(InputError, match="allowed"):
            render(system, replace(ONE, site=SiteHabits(before=(text + "\n",))))


@pytest.mark.parametrize("text", ['a"b', "a'b", "a\\b", "a`b", "$a", "a\nb"])
def test_options_that_systems_read_in_different_ways_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="allowed in an option of a batch job"):
        option_words([text])
    assert option_words(["--comment=two words"]) == '"--comment=two words"'
    assert option_words(["a#b"]) == '"a#b"'


def test_arrays_and_jobs_before_are_for_the_command_that_submits() -> None:
    """A script that submits itself again is one job, and waits for none."""
    commands = {
        name: [(each.words, dict(each.environ)) for each in system.submissions(ARRAY, "x.sh", "text")]
        for name, system in SYSTEMS.items()
    }
    depends = ("flux", "batch", "--dependency=afterany:7", "--dependency=afterany:8", "x.sh")
    assert commands == {
        "slurm": [(("sbatch", "--parsable", "--array=1-2", "--dependency=afterany:7:8", "x.sh"), {})],
        "pbs": [(("qsub", "-J", "1-2", "-W", "depend=afterany:7:8", "x.sh"), {})],
        "lsf": [(("bsub", "-J", "nets[1-2]", "-w", "ended(7) && ended(8)"), {})],
        "flux": [(depends, {"HPCBAL_TASK": "1"}), (depends, {"HPCBAL_TASK": "2"})],
    }
    (lsf,) = SYSTEMS["lsf"].submissions(ARRAY, "x.sh", "text")
    assert lsf.stdin == "text"


def test_an_array_of_one_run_is_a_job_where_arrays_must_have_two() -> None:
    one = replace(ARRAY, tasks=ARRAY.tasks[:1], outputs=ARRAY.outputs[:1], after=())
    (command,) = SYSTEMS["pbs"].submissions(one, "x.sh", "")
    assert command.words == ("qsub", "-v", "HPCBAL_TASK=1", "x.sh")


def test_pbs_may_start_the_tasks_of_an_array_again_because_it_takes_no_others() -> None:
    """`qsub -J` refuses `-r n`: cannot submit non-rerunable Array Job."""
    for job, may in ((replace(ARRAY, max_restarts=0), "y"), (ONE, "n"), (replace(ONE, max_restarts=1), "y")):
        text = render(SYSTEMS["pbs"], job)
        assert f"\n#PBS -r {may}\n" in text
        assert f"\nMAX_RESTARTS={job.max_restarts}\n" in text


def test_the_stand_in_for_pbs_refuses_what_pbs_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(render(SYSTEMS["pbs"], replace(ONE, site=SiteHabits())))
    with pytest.raises(stand_in_schedulers.Refused):
        stand_in_schedulers.qsub(["-J", "1-2", str(script)])
    assert capsys.readouterr().err == "qsub: cannot submit non-rerunable Array Job\n"


def test_pbs_keeps_its_own_log_where_ours_has_no_folder() -> None:
    assert "#PBS -o" not in render(SYSTEMS["pbs"], replace(ONE, log="hpcbal-%j.log"))
    assert "\n#PBS -o /home/me/runs/a/\n" in render(SYSTEMS["pbs"], ONE)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each, written in renders().items():
        (GOLDEN / f"{each}.txt").write_text(written)
