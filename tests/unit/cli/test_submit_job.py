"""`hpcbal submit-job`: writes what the run reads, and refuses what could not join it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcbal.cli.main import main
from hpcbal.config import JobsConfig, load_config, resolved_yaml
from hpcbal.config.listed import JOBS
from hpcbal.config.submission import submission_yaml
from hpcbal.errors import ConfigError
from hpcbal.runtime.handoff.submissions import SubmissionWatch, with_submitted, write_submission
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.paramserver_status import new_jobs_status
from hpcbal.telemetry.views.status import end_status, write_status

NOTHING = {
    "name": "c",
    "app": "hpcbal.paramserver.apps:Nothing",
    "data": {"dataset": "hpcbal.paramserver.apps:generated_regression"},
    "mini_batch": 10,
    "stop": {"max_epochs": 2},
}


def file_of(path: Path, *names: str, **changes: Any) -> Path:
    jobs = [
        {
            "name": name,
            "mini_batch": 10,
            "stop": {"max_epochs": 2},
            "app": "hpcbal.paramserver.apps:Lasso",
            "data": {
                "dataset": "hpcbal.paramserver.apps:generated_regression",
                "args": {"num_observations": 100, "num_features": 10},
            },
        }
        for name in names
    ]
    path.write_text(yaml.safe_dump({"kind": "jobs", "jobs": jobs, **changes}), encoding="utf-8")
    return path


def run_of(tmp_path: Path, **changes: Any) -> RunDirectory:
    """A run of the jobs `a` and `b` that has begun."""
    run = RunDirectory(tmp_path / "out", "jobs")
    run.root.mkdir()
    config = load_config(file_of(tmp_path / "run.yaml", "a", "b", **changes))
    run.config.write_text(resolved_yaml(config), encoding="utf-8")
    write_status(run.status, new_jobs_status("run", 2))
    return run


def jobs_config(path: Path) -> JobsConfig:
    config = load_config(path)
    assert isinstance(config, JobsConfig)
    return config


def test_a_submitted_job_is_read_back_as_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = run_of(tmp_path), file_of(tmp_path / "more.yaml", "c", "d")
    watch = SubmissionWatch(run, JOBS, ("a", "b"))
    assert watch.look() == ([], [])
    assert main(["submit-job", str(run.root), str(file)]) == 0
    assert capsys.readouterr().out == f"{run.root}: submitted c, d, within seconds, or at its next start\n"
    wanted = [*jobs_config(file).jobs]
    (found,), problems = watch.look()
    assert ([*found.items], problems) == (wanted, [])
    assert found.import_roots[0] == str(tmp_path)
    assert watch.look() == ([], [])
    merged = with_submitted(jobs_config(run.config), run)
    assert [job.name for job in merged.jobs] == ["a", "b", "c", "d"]
    assert with_submitted(merged, run) == merged, "a job in the run's own file is as it says there"
    status = new_jobs_status("run", 2)
    end_status(status, "done", 0)
    write_status(run.status, status)
    assert main(["submit-job", str(run.root), str(file_of(file, "e"))]) == 0
    assert "from the run's next start on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "changes", "of_run", "text"),
    [
        (["a"], {}, {}, "jobs.a: the run has a job 'a' already, allowed: a different name"),
        (["B"], {}, {}, "jobs.B: the run has a job 'b' already"),
        (["c"], {"seed": 3}, {}, "seed: is a matter of the run"),
        (["c"], {"stalls": 3}, {}, "stalls: unknown key"),
        (["c", "c"], {}, {}, "for more than one job"),
        (
            ["c"],
            {},
            {"schedule": {"paradigm": "naive", "groups": [{"jobs": ["a", "b"], "machines": 1}]}},
            "schedule.groups: the run has fixed groups",
        ),
        (["c"], {"jobs": [NOTHING]}, {}, "defines no 'Nothing'"),
    ],
)
def test_what_cannot_join_is_refused_before_anything_is_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    names: list[str],
    changes: dict[str, Any],
    of_run: dict[str, Any],
    text: str,
) -> None:
    run, file = run_of(tmp_path, **of_run), file_of(tmp_path / "more.yaml", *names, **changes)
    assert main(["submit-job", str(run.root), str(file)]) == 2
    assert text in capsys.readouterr().err
    assert not run.submissions.exists()


def test_a_file_without_a_kind_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = run_of(tmp_path), file_of(tmp_path / "more.yaml", "c")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("kind: jobs\n", ""), encoding="utf-8")
    assert main(["submit-job", str(run.root), str(file)]) == 2
    assert f"{file}: missing key 'kind', allowed here: kind: jobs" in capsys.readouterr().err
    file.write_text("- a list\n", encoding="utf-8")
    assert main(["submit-job", str(run.root), str(file)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_machines_with_speeds_need_times_of_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, machines=[{"speed": 0.5}], defaults={"seconds_per_sample": 0.1})
    assert main(["submit-job", str(run.root), str(file_of(tmp_path / "c.yaml", "c"))]) == 2
    assert "jobs.c.seconds_per_sample: got null, but machines of the run have" in capsys.readouterr().err
    timed = file_of(tmp_path / "c.yaml", "c", defaults={"seconds_per_sample": 0.1})
    assert main(["submit-job", str(run.root), str(timed)]) == 0


def test_only_runs_of_many_jobs_take_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = run_of(tmp_path), file_of(tmp_path / "more.yaml", "c")
    write_status(run.status, new_status("a", 2))
    assert main(["submit-job", str(run.root), str(file)]) == 2
    assert "a run of DNNs, allowed: the output of a run of kind jobs" in capsys.readouterr().err
    assert main(["submit-job", str(tmp_path / "nowhere"), str(file)]) == 2


def test_a_name_is_submitted_once_even_at_the_same_time(tmp_path: Path) -> None:
    run, file = run_of(tmp_path), file_of(tmp_path / "more.yaml", "c")
    text = submission_yaml(jobs_config(file), ())
    assert write_submission(run, text, 0)
    (path,) = run.submissions.iterdir()
    assert not write_submission(run, text.replace("mini_batch: 10", "mini_batch: 20"), 0), "check again"
    assert path.read_text() == text
    assert [*run.submissions.iterdir()] == [path], "no draft is left behind"
    assert main(["submit-job", str(run.root), str(file)]) == 2


def test_a_damaged_submission_is_told_once_and_stops_the_next_start(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.submissions.mkdir()
    for name, text in (("c", "jobs: 3"), ("d", "{"), ("e", ""), ("f", "search: s")):
        (run.submissions / f"{name}.yaml").write_text(text)
    watch = SubmissionWatch(run, JOBS, ("a", "b"))
    found, problems = watch.look()
    assert (found, len(problems)) == ([], 4)
    assert all("remove it; a search proposes again" in problem for problem in problems[1:3])
    assert problems[3].endswith("written by a search; remove it: the search proposes again")
    assert "c.yaml: damaged, allowed: a file that 'hpcbal submit-job' has written" in problems[0]
    assert watch.look() == ([], [])
    with pytest.raises(ConfigError, match="damaged"):
        with_submitted(jobs_config(run.config), run)


def test_add_names_the_verb_for_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = run_of(tmp_path), file_of(tmp_path / "more.yaml", "c")
    assert main(["add", str(run.root), str(file)]) == 2
    assert (
        "allowed: the output of a run of DNNs; a job joins with hpcbal submit-job" in capsys.readouterr().err
    )
