"""Write a run for trackers of experiments, MLflow and Weights & Biases, into local directories.

Nothing is sent: the files lie beside the run, and a machine with a network shows or uploads them later.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcbal import __version__, env
from hpcbal.config import load_config
from hpcbal.errors import InputError, OutputError
from hpcbal.events.history import OTHER_FIELDS
from hpcbal.kinds import KINDS
from hpcbal.telemetry.files.atomic_file import cannot_read
from hpcbal.telemetry.files.json_lines import unix_seconds
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.file import read_ledger
from hpcbal.telemetry.streams.metrics import read_metrics
from hpcbal.telemetry.views.kinds import jobs_of
from hpcbal.telemetry.views.read_status import import_roots_of, read_status
from hpcbal.telemetry.views.summary import flat_settings

Tracker = Literal["mlflow", "wandb-offline"]

_SKIPPED = OTHER_FIELDS - {"learning_rate", "num_slots", "num_workers", "seconds"}
_ARTEFACTS = ("best.h5", "checkpoint.h5", "metrics.jsonl")
_MOST_PARAMS, _MOST_METRICS, _MOST_CHARACTERS = 100, 1000, 500
"""Most of each that one call of MLflow takes, and most characters of a parameter in any of its versions."""


@dataclass(frozen=True, slots=True)
class TrackedEpoch:
    """The numbers of one epoch; those that are not finite are left out.

    Attributes:
        epoch: from 1.
        ended_s: Unix seconds.
        metrics: by name.
    """

    epoch: int
    ended_s: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrackedJob:
    """One DNN or job, as a tracker's run.

    Attributes:
        name: its name.
        params: settings by dotted key, as text.
        tags: facts about it by name, as text; paths of what it left behind are relative to the run.
        epochs: in order.
        state: as in the status: done, failed, pruned, ...
    """

    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    epochs: tuple[TrackedEpoch, ...]
    state: str


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run with its jobs, in the order of the configuration.

    Attributes:
        name: of the run.
        began_at: when it began, as its ledger has it.
        started_s: Unix seconds of the last start.
        jobs: at least one.
    """

    name: str
    began_at: str
    started_s: float
    jobs: tuple[TrackedJob, ...]


def read_tracked(directory: Path) -> TrackedRun:
    """Read what a tracker shows of a run in any state.

    Raises:
        InputError: if there is no run, it has not started, or a file of it cannot be read.
        ConfigError: if its configuration cannot be used.
    """
    run = RunDirectory(directory)
    run.check_exists()
    if not run.config.is_file():
        raise InputError(f"{directory}: no config.yaml: not the output directory of a run")
    config = load_config(run.config, import_roots=import_roots_of(directory))
    status = read_status(directory)
    run = RunDirectory(directory, KINDS[config.kind].jobs)
    state_of = {job["name"]: job for job in jobs_of(status)}
    jobs = []
    for name, job in config.jobs_by_name.items():
        found = state_of.get(name)
        state = "waiting" if found is None else found["state"]
        kept = {
            f"hpcbal.{each}": f"{run.jobs}/{name}/{each}"
            for each in _ARTEFACTS
            if (run.job(name) / each).exists()
        }
        tags = {
            "hpcbal.run": config.name,
            "hpcbal.kind": config.kind,
            "hpcbal.state": state,
            "hpcbal.cause": "" if found is None else f"{found['cause']} {found['detail']}".strip(),
            "hpcbal.version": __version__,
            "hpcbal.directory": str(directory.resolve()),
            **kept,
        }
        settings = job.model_dump(by_alias=True, mode="json", exclude={"name"}, exclude_none=True)
        try:
            epochs = tuple(_epoch(line) for line in read_metrics(run.metrics(name)))
        except OSError as error:
            raise InputError(cannot_read(run.metrics(name), error)) from error
        shown = {key: value for key, value in tags.items() if value}
        jobs.append(TrackedJob(name, dict(flat_settings(settings)), shown, epochs, state))
    entries = read_ledger(run.ledger)
    began_at = entries[0].time if entries else status["started_at"]
    return TrackedRun(config.name, began_at, unix_seconds(status["started_at"]), tuple(jobs))


def _epoch(line: Mapping[str, Any]) -> TrackedEpoch:
    numbers = {
        name: float(value)
        for name, value in line.items()
        if name not in _SKIPPED and isinstance(value, int | float) and math.isfinite(value)
    }
    return TrackedEpoch(line["epoch"], unix_seconds(line["time"]), numbers)


def export_tracking(directory: Path, tracker: Tracker, into: Path | None = None) -> Path:
    """Write a run for a tracker; a run that is there already is refused.

    Args:
        directory: output directory of a run.
        tracker: which one.
        into: the directory of the tracker, which may hold other runs; None: one beside the files of the run.

    Returns: the directory.

    Raises:
        InputError: if the library is missing, or the run is there already.
        OutputError: if the directory cannot be written.
    """
    run = read_tracked(directory)
    place = into or directory / "tracking" / tracker.removesuffix("-offline")
    write: Callable[[TrackedRun, Path], None] = _to_mlflow if tracker == "mlflow" else _to_wandb
    try:
        write(run, place.absolute())
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"{place}: cannot write: {reason}; choose another --into") from error
    return place


def _missing(library: str, error: ImportError) -> InputError:
    return InputError(f"export-tracking: needs {library} ({error}); pip install 'hpcbal[tracking]'")


def _to_mlflow(run: TrackedRun, place: Path) -> None:
    """An experiment with a run for each job, in files."""
    os.environ |= env.MLFLOW_SETTINGS
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag
    except ImportError as error:
        raise _missing("mlflow", error) from error
    place.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=place.as_uri())
    there = client.get_experiment_by_name(run.name)
    if there is not None:
        is_deleted = there.lifecycle_stage == "deleted"  # by hand; its name is still taken
        where = place / ".trash" / there.experiment_id if is_deleted else "it there"
        raise InputError(
            f"{place} holds {'a deleted' if is_deleted else 'an'} experiment {run.name} already; remove "
            f"{where}, or choose another --into"
        )
    experiment = client.create_experiment(run.name)
    try:
        for job in run.jobs:
            start_s = min([run.started_s, *(each.ended_s for each in job.epochs[:1])])
            created = client.create_run(experiment, run_name=job.name, start_time=_ms(start_s))
            run_id = created.info.run_id
            tags = [RunTag(_allowed(name), value) for name, value in job.tags.items()]
            client.log_batch(run_id, tags=tags)
            params = [Param(_allowed(name), value[:_MOST_CHARACTERS]) for name, value in job.params.items()]
            for first in range(0, len(params), _MOST_PARAMS):
                client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])
            metrics = [
                Metric(_allowed(name), value, _ms(each.ended_s), each.epoch)
                for each in job.epochs
                for name, value in each.metrics.items()
            ]
            for first in range(0, len(metrics), _MOST_METRICS):
                client.log_batch(run_id, metrics=metrics[first : first + _MOST_METRICS])
            end_s = max([start_s, *(each.ended_s for each in job.epochs)])
            client.set_terminated(run_id, "FAILED" if job.state == "failed" else "FINISHED", _ms(end_s))
    except BaseException:
        # Not to be taken for the whole run. MLflow would only mark it as deleted, and keep its name taken.
        shutil.rmtree(place / experiment, ignore_errors=True)
        raise


def _allowed(name: str) -> str:
    """A name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _ms(seconds: float) -> int:
    return round(1000.0 * seconds)


def _to_wandb(run: TrackedRun, place: Path) -> None:
    """An offline run for each job, in the project of the run's name."""
    os.environ |= env.WANDB_SETTINGS
    try:
        import wandb
    except ImportError as error:
        raise _missing("wandb", error) from error
    place.mkdir(parents=True, exist_ok=True)
    ids = {job.name: _wandb_id(run, job) for job in run.jobs}
    there = [name for name, each in ids.items() if any(place.glob(f"wandb/offline-run-*-{each}"))]
    if there:
        raise InputError(
            f"{place / 'wandb'} holds {there[0]} of {run.name} already; remove its folders there, or choose "
            "another --into"
        )
    settings = wandb.Settings(
        mode="offline",
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_stats=True,
    )
    for job in run.jobs:
        config = {**job.params, **job.tags}
        begun = wandb.init(
            project=run.name,
            name=job.name,
            id=ids[job.name],
            dir=str(place),
            config=config,
            settings=settings,
        )
        for each in job.epochs:
            begun.log({**each.metrics, "epoch": each.epoch, "ended_s": each.ended_s}, step=each.epoch)
        begun.summary["state"] = job.state
        begun.finish(exit_code=int(job.state == "failed"))


def _wandb_id(run: TrackedRun, job: TrackedJob) -> str:
    """The same for each export of one job, also of a copy of the run, so that an upload shows it once.

    A run that is trained anew in the same directory has another one.
    """
    return hashlib.sha256(f"{run.name}\0{run.began_at}\0{job.name}".encode()).hexdigest()[:12]
