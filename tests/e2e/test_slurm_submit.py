"""`hpcbal submit`, `status` and `cancel` on a real Slurm, to the last epoch."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import ENSEMBLE, MARKS, Cluster, Job, results, running_cluster

from hpcbal.telemetry.files.json_lines import unix_seconds

pytestmark = MARKS

SEED = 46
SIX = ENSEMBLE.replace("EPOCHS", "6")
ENDLESS = ENSEMBLE.replace("EPOCHS", "500")
DONE = ("COMPLETED", "0:0")
PASSES = re.compile(r"\] pass \d+ ")
JOB_S = 20.0
"""About as long as a job of six epochs takes from its submission to its end."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("user")) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def limited(cluster: Cluster) -> Job:
    """A job that reaches its time limit while the other tests run."""
    slow = SIX.replace("{1: 600}", "{1: 90}").replace("{1: 500}", "{1: 90}")
    return cluster.submit_run("limited", "--until-done", "3", config=slow, time="0:02")


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> dict[str, list[list[object]]]:
    """The numbers of all epochs of a job that nobody has disturbed."""
    whole = cluster.submit_run("whole", config=SIX)
    assert whole.end() == DONE, whole.log
    job = cluster.in_queue("whole")
    assert (job["phase"], job["word"], job["exit_code"]) == ("ended", "COMPLETED", 0)
    assert whole.show("Restarts") == "0"
    return results(cluster, "whole")


def test_jobs_come_back_after_losses_and_stops_while_they_get_further_and_may(
    cluster: Cluster, undisturbed: dict[str, list[list[object]]]
) -> None:
    lost = cluster.submit_run("lost", "--until-done", "1", config=SIX)
    often = cluster.submit_run("often", "--until-done", "1", config=ENDLESS)
    # A rank of this one dies in every start before anything is trained.
    stuck = cluster.submit_run("stuck", "--until-done", "9", config=SIX.replace("Points", "Deadly"))

    lost.wait_until_trained(2)
    job = cluster.in_queue("lost")
    assert (job["phase"], job["max_restarts"]) == ("running", 1)
    assert time.time() < unix_seconds(job["until"]) < time.time() + 1300
    cluster.lose_node(job["nodes"])
    lost.wait_for(lambda: cluster.in_queue("lost")["phase"] == "pending")
    shown = cluster.hpcbal("status", "runs/lost").stdout
    assert "its batch job continues the run" in shown
    assert re.search(rf"job {lost.number} \(Slurm\): pending, \w+", shown), shown

    for restarts in ("0", "1"):
        often.wait_for(lambda restarts=restarts: often.show("Restarts") == restarts)
        trained = len(PASSES.findall(often.log))
        often.wait_for(lambda trained=trained: len(PASSES.findall(often.log)) > trained)
        often.signal("USR2")
    assert often.end() == ("FAILED", "75:0")
    assert often.show("Restarts") == "1"
    assert "the job was started again 1 times, 1 are allowed, and ends here" in often.log

    assert stuck.end() == ("FAILED", "1:0")
    assert stuck.show("Restarts") == "1"
    assert "died without an error message" in stuck.log
    assert "two starts in a row have got no further" in stuck.log
    assert cluster.in_queue("stuck")["exit_code"] == 1

    assert lost.end() == DONE, lost.log
    assert lost.show("Restarts") == "1"
    assert results(cluster, "lost") == undisturbed


def test_an_array_comes_back_by_tasks_and_is_compared_at_its_end_whatever_its_files_are_called(
    cluster: Cluster,
) -> None:
    """The words of scripts, and options in their heads, reach Slurm and the run as they were given."""
    odd = "it's $HOME.yaml"
    (cluster.folder / odd).write_text(ENSEMBLE.replace("EPOCHS", "3"))
    words = (odd, "--array", "seeds=0-1", "--output", "runs/of it", "--samples", "600", "--until-done", "2")
    shown = cluster.hpcbal("submit", *words, "--json", "--", "--comment=two words #1")
    answer = json.loads(shown.stdout)
    array, last = answer["ids"][0], Job(cluster, answer["compare"])
    assert "Comment=two words #1" in cluster.run("scontrol", "show", "job", array)
    assert answer["job"]["time_s"] < 600, "the run is predicted to take seconds"
    refused = cluster.hpcbal("submit", *words)
    assert refused.returncode == 2
    assert re.search(rf"seed-0: its job {array}_1 is (pending|running)", refused.stderr)
    first, second = (cluster.in_queue(f"of it/seed-{seed}") for seed in (0, 1))
    assert (first["id"], second["id"]) == (f"{array}_1", f"{array}_2")
    stopped = Job(cluster, first["id"], Path(first["log"]))
    stopped.wait_until_trained()
    stopped.signal("USR2")
    assert last.end() == DONE
    assert [Job(cluster, job["id"]).show("Restarts") for job in (first, second)] == ["1", "0"]
    page = (cluster.folder / "runs/of it/compare.html").read_text()
    assert "seed-0" in page
    assert "seed-1" in page
    found = [results(cluster, f"of it/seed-{seed}") for seed in (0, 1)]
    assert found[0] != found[1]
    assert [len(epochs) for each in found for epochs in each.values()] == [3] * 4


def test_signals_at_any_moment_change_no_result(
    cluster: Cluster, undisturbed: dict[str, list[list[object]]]
) -> None:
    """To the script, as before the time limit, or to the ranks, which die of it before they catch it."""
    draw = random.Random(SEED)
    jobs = []
    for number in range(4):
        job = cluster.submit_run(f"signal{number}", "--until-done", "3", config=SIX)
        jobs.append((draw.uniform(0.0, JOB_S), time.monotonic(), job, number % 2 == 0))
    for after_s, submitted_s, job, is_to_script in sorted(jobs, key=lambda each: each[0] + each[1]):
        time.sleep(max(0.0, submitted_s + after_s - time.monotonic()))
        words = ("--batch", "--signal=USR2") if is_to_script else ("--signal=TERM",)
        cluster.run("scancel", *words, job.number)
    for number, (after_s, _, job, _) in enumerate(jobs):
        where = f"seed {SEED}, job {number}, signalled after {after_s:.1f} s\n{job.log}"
        end = job.end(250)
        if end == ("FAILED", "0:12"):  # of bash, which had not yet read the line with the trap
            assert job.log == "", where
            assert cluster.submit_run(f"signal{number}", config=SIX).end() == DONE
            end = DONE
        assert end == DONE, where
        assert results(cluster, f"signal{number}") == undisturbed, where


def test_cancelled_jobs_write_checkpoints_and_stay_away(cluster: Cluster) -> None:
    running = cluster.submit_run("running", "--until-done", "3", config=ENDLESS)
    killed = cluster.submit_run("killed", "--until-done", "3", config=ENDLESS)
    waiting = cluster.submit_run("waiting", "--until-done", "3", "--after", running.number)
    assert cluster.in_queue("waiting")["reason"] == "Dependency"
    assert "has not begun" in cluster.hpcbal("status", "runs/waiting").stdout
    refused = cluster.hpcbal("submit", "running.yaml", "--output", "runs/running", "--time", "0:20")
    assert (refused.returncode, "its job" in refused.stderr) == (2, True)
    for job in (running, killed):
        job.wait_until_trained()
    done = cluster.hpcbal("cancel", "runs/running", "runs/waiting")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"runs/running: job {running.number} (Slurm) was asked to stop" in done.stdout
    assert f"runs/waiting: job {waiting.number} (Slurm) waited, and was removed" in done.stdout
    assert "was killed" in cluster.hpcbal("cancel", "--now", "runs/killed").stdout
    assert running.end() == ("FAILED", "75:0")
    assert "cancelled by hpcbal cancel" in running.log
    assert waiting.end()[0] == killed.end()[0] == "CANCELLED"
    assert json.loads(cluster.hpcbal("status", "runs/running", "--json").stdout)["outcome"] == "suspended"
    assert all(job.show("Restarts") == "0" for job in (running, killed, waiting))
    again = cluster.hpcbal("cancel", "runs/running")
    assert (again.returncode, "nothing to cancel" in again.stdout) == (0, True)


JOBS = """\
kind: jobs
defaults: {mini_batch: 40}
jobs:
  - name: classes
    app: hpcbal.paramserver.apps:MLR
    data:
      dataset: hpcbal.paramserver.apps:generated_classes
      args: {num_samples: 400, num_features: 60, num_classes: 3}
    seconds_per_sample: 0.01
    stop: {max_epochs: 4}
  - name: factors
    app: hpcbal.paramserver.apps:NMF
    args: {rank: 4}
    data:
      dataset: hpcbal.paramserver.apps:generated_ratings
      args: {num_users: 400, num_items: 50}
    seconds_per_sample: 0.01
    stop: {max_epochs: 4}
machines: [{count: 2, bandwidth: 5MB/s}]
"""
ONE_JOB = """\
kind: paramserver
app: hpcbal.paramserver.apps:MLR
data:
  dataset: hpcbal.paramserver.apps:generated_classes
  args: {num_samples: 400, num_features: 60, num_classes: 3}
mini_batch: 40
stop: {max_epochs: 4}
slots: {per_node: 2}
"""


def test_parameter_server_jobs_run_and_come_back_under_slurm(cluster: Cluster) -> None:
    several = cluster.submit_run("several", "--until-done", "2", config=JOBS)
    one = cluster.submit_run("one", config=ONE_JOB)
    several.wait_for(lambda: "epoch 1" in several.log)
    several.signal("USR2")
    assert [job.end() for job in (several, one)] == [DONE, DONE], several.log
    assert (several.show("Restarts"), one.show("Restarts")) == ("1", "0")
    for name, count in (("several", 2), ("one", 1)):
        shown = json.loads(cluster.hpcbal("status", f"runs/{name}", "--json").stdout)
        assert [(job["state"], job["epochs"]) for job in shown["jobs"]] == [("done", 4)] * count


def test_a_job_that_reaches_its_walltime_comes_back_and_learns_the_same(
    cluster: Cluster, limited: Job, undisturbed: dict[str, list[list[object]]]
) -> None:
    assert limited.end(250) == DONE, limited.log
    assert limited.show("Restarts") == "1"
    # Slurm may signal a minute early, and the run stops by itself a minute before the end: one comes first.
    assert re.search(r"stopping \((the walltime is nearly over|signal SIGUSR2)", limited.log)
    assert results(cluster, "limited") == undisturbed
