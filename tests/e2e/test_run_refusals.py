"""Wrong input is reported in one clear sentence, with the right exit code and no traceback.

tests/unit/runtime/whole_runs/test_joining.py refuses an augmentation that does not work, in one process.
"""

from __future__ import annotations

import shutil
import signal

import pytest

pytestmark = pytest.mark.e2e

ONE_SLOT = {"slots": {"per_node": 1}}
"""The fewest ranks, for what does not depend on their number."""


def check_refused(done, *parts: str, code: int = 2) -> None:
    """One sentence that holds `parts`; what mpirun adds is not ours."""
    assert done.code == code, done
    assert "Traceback" not in done.err, done
    said = [line for line in done.err.splitlines() if line.startswith("hpcbal")]
    ours = [line for line in said if "ranks have printed nothing" not in line]  # on a busy machine
    assert len(ours) == 1, done
    for part in parts:
        assert part in ours[0], done


def test_an_output_directory_that_cannot_be_used(lab):
    (lab.folder / "file").write_text("x", encoding="utf-8")
    lab.configure(**ONE_SLOT)
    check_refused(lab.run("run", "run.yaml", "--output", "file"), "file: ")
    check_refused(lab.run_alone("run", "run.yaml", "--output", "/proc/out"), "/proc/out: ")
    (lab.folder / "mine").mkdir()
    (lab.folder / "mine" / "thesis.tex").touch()
    done = lab.run_alone("run", "run.yaml", "--output", "mine")
    check_refused(done, "mine: not empty", "thesis.tex", "--output")
    check_refused(lab.run_alone("run", "run.yaml", "--resume"), "out: no run to resume")


def test_a_missing_dataset(lab):
    data = {"dataset": "hpcbal.data:image_folder", "args": {"path": "no/such/folder"}}
    lab.configure(data=data, **ONE_SLOT)
    check_refused(lab.run(), "no/such/folder")
    (lab.out / "config.yaml").unlink()
    shutil.rmtree(lab.out)
    lab.configure(data={"dataset": "toys:pionts"}, **ONE_SLOT)
    check_refused(lab.run_alone(), "defines no 'pionts' (did you mean")


def test_an_operation_of_the_user_that_fails_for_every_sample(lab):
    (lab.folder / "steps.py").write_text("def broken(sample, rng):\n    return sample.missing\n")
    lab.configure(preprocessing=[{"steps:broken": {}}], **ONE_SLOT)
    check_refused(
        lab.run(), "training samples that were tried can be used", "steps.py:2: AttributeError", "'missing'"
    )


def test_fewer_ranks_than_the_config_needs(lab):
    done = lab.run(num_ranks=3)
    check_refused(done, "has 3 rank(s), but the config needs 5 there", "mpirun -n 5")


def test_a_world_that_was_started_as_singletons(lab):
    """The launcher says four, MPI says one: as when mpi4py was built with another MPI."""
    reported = {"PMI_SIZE": "4"}
    first, second = (lab.run(PMI_RANK=str(rank), **reported) for rank in (0, 1))
    check_refused(first, "PMI started 4 processes, but this process is rank 0 in an MPI world of size 1")
    assert (second.code, second.err) == (2, "")
    assert not lab.out.exists()


def test_a_directory_that_another_run_is_using(lab):
    lab.configure(lambda config: config["backend"]["rates"].update({"b": {1: 5.0}}), **ONE_SLOT)
    first = lab.start()
    first.until(lambda: lab.events("epoch-done"), "epoch")
    pid = first.pids()[0]
    check_refused(lab.run_alone(), "out: another run is using this directory", f"process {pid} on ")
    first.process.send_signal(signal.SIGINT)
    assert first.wait().code == 75


def test_a_changed_config_is_refused_and_more_epochs_are_not(lab):
    """Each start warns once of a key that has no effect; with several ranks, rank 0 does."""
    sections = {"balance": {"policy": "even", "predictor": "narx"}, **ONE_SLOT}
    lab.configure(**sections)
    warning = "balance.predictor: got 'narx', which has an effect only with policy: lb-bsp-cpu"
    done = lab.run()
    assert (done.code, done.err.count(warning)) == (0, 1), done
    again = lab.run()
    assert (again.code, again.err.count(warning), len(again.err.splitlines())) == (0, 1, 1), again
    assert "nothing to do" in again.out
    assert len(lab.events("run-started")) == 1
    again = lab.run(num_ranks=3)
    assert (again.code, again.err.count(warning)) == (0, 1), again
    done = lab.run_alone("run", "run.yaml", "--set", "seed=6")
    check_refused(done, "out: holds a run with another config")
    assert "seed: was 5, is 6" in done.err
    assert lab.results()["b"].epochs == 3

    def more_epochs(config) -> None:
        config["dnns"][1]["stop"]["max_epochs"] = 5

    lab.configure(more_epochs, **sections)
    done = lab.run()
    assert done.code == 0, done
    assert {name: row.epochs for name, row in lab.results().items()} == {"a": 5, "b": 5, "c": 4}
