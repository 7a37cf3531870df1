"""The paths of a run's files in its output directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcbal.errors import InputError
from hpcbal.telemetry.files.atomic_file import NO_FILE


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of all files of a run; opens and creates nothing.

    Attributes:
        root: the output directory.
        jobs: name of the folder in it with one folder per job; each kind of run has its own name.
    """

    root: Path
    jobs: str = "dnns"

    def check_exists(self) -> None:
        """Refuse a root that is no directory.

        Raises:
            InputError: it is a file, or there is nothing.
        """
        if not self.root.is_dir():
            what = "is a file" if self.root.exists() else "no such directory"
            raise InputError(f"{self.root}: {what}; give the output directory of a run")
        if self.config.exists() and not (self.config.is_file() or self.config.is_dir()):
            raise InputError(f"{self.config}: {NO_FILE}; restore or remove it")

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def given(self) -> Path:
        """The configuration that Python code gave as values, as the YAML file to start the run with."""
        return self.root / "given.yaml"

    @property
    def removed_jobs(self) -> Path:
        """Configs of jobs that were removed from the file of a run that had begun, by name."""
        return self.root / f"removed-{self.jobs}.yaml"

    @property
    def profile(self) -> Path:
        return self.root / "profile.json"

    @property
    def operations(self) -> Path:
        """The trace of one worker of a parameter-server job, from `hpcbal profile --operations`."""
        return self.root / "operations.jsonl"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def results(self) -> Path:
        return self.root / "results.csv"

    @property
    def evaluation(self) -> Path:
        """Scores of the trained DNNs and their ensemble, from `hpcbal evaluate`."""
        return self.root / "evaluation.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def timeline(self) -> Path:
        return self.root / "timeline.json.gz"

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"

    @property
    def executors(self) -> Path:
        """Names the executors that a parameter-server job may use; written by its site or its user."""
        return self.root / "executors"

    @property
    def submissions(self) -> Path:
        """Holds the jobs that were submitted to a run of many jobs after it had begun."""
        return self.root / "submitted"

    @property
    def stop_requests(self) -> Path:
        """Holds an empty file by the name of each DNN that the user has asked to stop."""
        return self.root / "to-stop"

    @property
    def batch_jobs(self) -> Path:
        """Names the batch jobs that were submitted for the run, see `batch_jobs`."""
        return self.root / "batch.jsonl"

    @property
    def batch_script(self) -> Path:
        """The script of the last batch job that was submitted for the run."""
        return self.root / "batch.sh"

    @property
    def compiled(self) -> Path:
        """Holds what torch.compile has made; safe to remove while nothing trains."""
        return self.root / "compiled"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def evaluation_logs(self) -> Path:
        """Logs of the ranks of `hpcbal evaluate`, which may run while the run does."""
        return self.logs / "evaluate"

    @property
    def first_error(self) -> Path:
        return self.logs / "first-error.txt"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:03d}.log"

    def rank_output(self, rank: int) -> Path:
        """Log of what code of the user has printed in a rank."""
        return self.logs / f"rank-{rank:03d}.out"

    def job(self, name: str) -> Path:
        """Directory of one job, such as a DNN: checkpoints, metrics, TensorBoard events."""
        return self.root / self.jobs / name

    def metrics(self, name: str) -> Path:
        return self.job(name) / "metrics.jsonl"
