"""The job scripts that are shipped, on a real Slurm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from slurm_cluster import ENSEMBLE, HPCBAL, MARKS, Cluster, results, running_cluster

pytestmark = MARKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("user")) as made:
        yield made


def test_jobs_end_with_what_the_run_has_recorded(cluster: Cluster) -> None:
    (cluster.folder / "het.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=3\n"
        "#SBATCH hetjob\n#SBATCH --nodes=1 --ntasks-per-node=2\n"
        f"$({HPCBAL} launcher) {HPCBAL} run het.yaml --output runs/het >het.log 2>&1\n"
    )
    (cluster.folder / "het.yaml").write_text(ENSEMBLE.replace("EPOCHS", "2") + "preflight: true\n")
    lost = cluster.submit("lost", "--nodes=2", "--no-requeue", script=cluster.with_mpirun(), epochs=500)
    once = cluster.submit("once", "--no-requeue", "--nodes=1", epochs=500)
    whole = cluster.submit("one", script="one_node.sbatch", epochs=1)
    lost.wait_until_trained()
    status = subprocess.run(
        [HPCBAL, "status", "runs/lost"], cwd=cluster.folder, capture_output=True, text=True, timeout=60
    )
    assert "training" in status.stdout  # from outside of the cluster
    once.wait_until_trained()
    once.signal("USR2")
    heterogeneous = cluster.submit_words("het.sbatch")
    last = cluster.run("squeue", "-hj", lost.number, "-o", "%N").strip()
    node = f"n{re.findall('[0-9]+', last)[-1]}"
    cluster.control("kill-node", node)
    lost.wait_for(lambda: lost.show("JobState") != "RUNNING")
    assert lost.show("ExitCode") == "1:0"  # so it is FAILED, once Slurm has given up waiting for the node
    assert f"node {node} was lost, as the launcher says above" in lost.log
    # otherwise Slurm notices it after SlurmdTimeout; the other nodes are enough for the other tests
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    assert whole.end() == ("COMPLETED", "0:0")
    assert once.end() == ("FAILED", "75:0")
    assert heterogeneous.end() == ("COMPLETED", "0:0"), (cluster.folder / "het.log").read_text()
    two_nodes = re.findall(r"n\d+: 1 emulated slot, 1 preprocessor", (cluster.folder / "het.log").read_text())
    assert len(two_nodes) == 2  # one MPI world, with a node of each component
    assert "preflight: no errors in shared memory" in (cluster.folder / "het.log").read_text()


def test_jobs_that_are_stopped_or_lose_a_rank_go_on_and_learn_the_same(cluster: Cluster) -> None:
    """`scancel --signal` does at any time what `--signal=B:USR2@...` does before the time limit.

    Requeued jobs wait for some seconds, in which others start: hence all of them in one test.
    """
    killed = cluster.submit("killed", "--nodes=2", epochs=6)
    killed.wait_until_trained()
    killed.kill_rank(5)
    signalled = cluster.submit("signalled", "--nodes=2", script=cluster.with_mpirun(), epochs=6)
    signalled.wait_until_trained()
    cluster.run("scancel", "--signal=USR1", signalled.number)  # to Open MPI's daemon, which dies of it
    early = cluster.submit("early", "--nodes=1", "--export=NONE", epochs=1)
    early.wait_for(early.has_started_ranks)
    early.signal("USR2")  # is kept; and srun gets an environment
    stopped = cluster.submit("stopped", "--nodes=2", epochs=6)
    stopped.wait_until_trained()
    stopped.signal("USR2")
    whole = cluster.submit("whole", "--nodes=2", script=cluster.with_mpirun(), epochs=6)
    jobs = (stopped, whole, early, killed, signalled)
    assert [job.end(300) for job in jobs] == [("COMPLETED", "0:0")] * 5
    assert [job.show("Restarts") for job in jobs] == ["1", "0", "1", "1", "1"]
    assert "stopping (signal SIGUSR2" in stopped.log
    assert results(cluster, "stopped") == results(cluster, "killed") == results(cluster, "whole")
    assert results(cluster, "signalled") == results(cluster, "whole")
    assert re.search(
        r"lost communication with a remote daemon(.*\n)+.*Remote daemon: .* on node n\d", signalled.log
    )
    # srun ends the others in the same moment, so a death that it caused may be reported in place of rank 5's;
    # then its own messages, to which the report points, name rank 5.
    (named,) = re.findall(r"rank (\d+) \(\w+, pid \d+\) on host .* died without", killed.log)
    by_srun = re.search(r"srun: error: n\d: tasks? (\S*[,-])?5: Killed", killed.log)
    assert named == "5" or (by_srun and "see the launcher's messages" in killed.log), killed.log
