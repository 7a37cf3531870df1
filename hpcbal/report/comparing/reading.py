"""Read the runs of a comparison from their output directories."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcbal.config import AnyConfig, load_config
from hpcbal.errors import HpcbalError, InputError
from hpcbal.events.history import shows_more_better
from hpcbal.report.comparing.text import Comparison, ConfigDifference, DnnInRun, RunSummary
from hpcbal.report.model import JobReport, ReportData
from hpcbal.report.reading.run_files import read_run
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.summary import differing_settings

DEFAULT_METRIC = "val_accuracy"
"""How DNNs are compared if a run's configuration cannot be read."""

_NOT_COMPARED = ("name", "output")
_S_PER_HOUR = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    label: str
    directory: Path
    data: ReportData
    config: AnyConfig | None


def read_comparison(directories: Sequence[Path], metric: str | None = None) -> Comparison:
    """Read runs in any state; directories without a run that has started are named among the problems.

    Args:
        directories: output directories, all different.
        metric: the metric by which all DNNs are compared; None: the one that the stop rule of a DNN watches,
            in the first run that has a DNN of this name.

    Raises:
        HpcbalError: if none of them holds a run that has started, or one does not exist.
        InputError: if two are the same, or no DNN has the metric.
    """
    paths = [Path(directory) for directory in directories]
    again = [path for path, count in Counter(map(os.path.realpath, paths)).items() if count > 1]
    if again:
        raise InputError(f"{again[0]}: given twice; give each run once")
    read, unread = [], []
    for path in paths:
        try:
            read.append((path, read_run(path), *_config_of(path)))
        except HpcbalError as error:
            if not path.exists():
                raise
            unread.append(error)
    if not read:
        raise unread[0]
    labels = _labels([(path, data.name) for path, data, _, _ in read])
    runs = [
        _Run(label, path, data, config) for label, (path, data, config, _) in zip(labels, read, strict=True)
    ]
    if metric is not None:
        _check_metric(metric, runs)
    dnns = [
        _dnn(run, job, *_metric_of(name, metric, runs))
        for name in dict.fromkeys(job.name for run in runs for job in run.data.jobs)
        for run in runs
        for job in run.data.jobs
        if job.name == name
    ]
    dnns = _with_best(dnns)
    problems = [f"{path}: {data.problem}" for path, data, _, _ in read if data.problem]
    problems += [problem for _, _, _, problem in read if problem]
    problems += [f"not compared: {error}" for error in unread]
    summaries = [_summary(run, [each for each in dnns if each.run == run.label]) for run in runs]
    return Comparison(tuple(summaries), tuple(dnns), _settings(runs), tuple(problems))


def _config_of(directory: Path) -> tuple[AnyConfig | None, str]:
    """The run's configuration, or None and what is wrong with it."""
    path = RunDirectory(directory).config
    try:
        config = load_config(path)
    except (HpcbalError, OSError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, HpcbalError) else error.strerror
        return None, f"{path}: cannot be used, so settings are not compared ({reason})"
    return config, ""


def _labels(runs: Sequence[tuple[Path, str]]) -> list[str]:
    """Names of the runs; where two are equal, their directories' names, or else the directories as given."""
    for candidates in (
        [name for _, name in runs],
        [path.resolve().name for path, _ in runs],
        [str(path) for path, _ in runs],
    ):
        if len(set(candidates)) == len(candidates):
            return candidates
    return [str(path) for path, _ in runs]


def _check_metric(metric: str, runs: Sequence[_Run]) -> None:
    points = [point for run in runs for job in run.data.jobs for point in job.curve]
    known = dict.fromkeys(name for point in points for name in point.metrics)
    if metric not in known:
        raise InputError(
            f"--metric: got {metric!r}, allowed: {', '.join(known) or 'none, nothing is trained yet'}"
        )


def _metric_of(name: str, wanted: str | None, runs: Sequence[_Run]) -> tuple[str, bool]:
    """The metric by which jobs of this name are compared, and whether more of it is better."""
    known = [(run, run.config.jobs_by_name.get(name)) for run in runs if run.config is not None]
    stops = [(run, job.stop) for run, job in known if job is not None]
    watched = (stop.watched or _first_metric(name, run) for run, stop in stops[:1])
    metric = wanted or next(watched, None) or DEFAULT_METRIC
    watching = next((stop for _, stop in stops if stop.watched == metric), None)
    if watching is not None:
        return metric, watching.resolved_mode == "max"
    return metric, shows_more_better(metric)


def _first_metric(name: str, run: _Run) -> str | None:
    """The first metric that a job has had; None if it has had none."""
    points = [point for job in run.data.jobs if job.name == name for point in job.curve]
    return next((metric for point in points for metric in point.metrics), None)


def _dnn(run: _Run, job: JobReport, metric: str, more_is_better: bool) -> DnnInRun:
    values = [(point.metrics.get(metric), point.epoch) for point in job.curve]
    known = [(value, epoch) for value, epoch in values if value is not None]
    sign = 1.0 if more_is_better else -1.0
    best, best_epoch = max(known, key=lambda each: sign * each[0], default=(None, None))
    last = job.curve[-1].metrics if job.curve else {}
    return DnnInRun(
        dnn=job.name,
        run=run.label,
        state=job.state,
        epochs=job.epochs,
        metric=metric,
        more_is_better=more_is_better,
        best=best,
        best_epoch=best_epoch,
        last=last.get(metric),
        last_metrics=last,
        wall_time_s=job.wall_time_s,
        slot_hours=job.slot_seconds / _S_PER_HOUR,
        curve=job.curve,
    )


def _with_best(dnns: Sequence[DnnInRun]) -> list[DnnInRun]:
    """Mark the best run of each DNN that several runs have."""
    marked = []
    for each in dnns:
        others = [other.best for other in dnns if other.dnn == each.dnn and other.best is not None]
        is_best = False
        if each.best is not None and len(set(others)) > 1:
            is_best = each.best == (max(others) if each.more_is_better else min(others))
        marked.append(dataclasses.replace(each, is_best=is_best))
    return marked


def _summary(run: _Run, dnns: Sequence[DnnInRun]) -> RunSummary:
    data = run.data
    known = [each for each in dnns if each.best is not None]
    best = None
    if known and len({each.metric for each in dnns}) == 1:
        sign = 1.0 if known[0].more_is_better else -1.0
        best = max(known, key=lambda each: sign * (each.best or 0.0))
    return RunSummary(
        label=run.label,
        directory=str(run.directory),
        state=data.state,
        num_done=sum(job.state == "done" for job in data.jobs),
        num_pruned=sum(job.state == "pruned" for job in data.jobs),
        num_stopped=sum(job.state == "stopped" for job in data.jobs),
        num_failed=len(data.failed),
        num_dnns=len(data.jobs),
        num_slots=data.num_slots,
        starts=len(data.start_s),
        duration_s=data.duration_s,
        slot_hours=sum(each.slot_hours for each in dnns),
        best_dnn="" if best is None else best.dnn,
        best=None if best is None else best.best,
    )


def _settings(runs: Sequence[_Run]) -> tuple[ConfigDifference, ...]:
    """The keys in which the configurations differ; those of a DNN only if several runs have it."""
    plain = {run.label: _comparable(run.config) for run in runs if run.config is not None}
    if len(plain) < 2:
        return ()
    counts = Counter(name for config in plain.values() for name in config["dnns"])
    for config in plain.values():
        config["dnns"] = {name: dnn for name, dnn in config["dnns"].items() if counts[name] == len(plain)}
    differing = differing_settings(plain)
    keys = next(iter(differing.values()))
    return tuple(
        ConfigDifference(key, {label: settings[key] for label, settings in differing.items()}) for key in keys
    )


def _comparable(config: AnyConfig) -> dict[str, Any]:
    """The configuration as plain values, with DNNs by name."""
    values: Mapping[str, Any] = config.model_dump(by_alias=True)
    kept = {key: value for key, value in values.items() if key not in _NOT_COMPARED}
    if "dnns" not in kept:
        return {**kept, "dnns": {}}
    kept["preprocessing"] = {str(index): step for index, step in enumerate(kept["preprocessing"])}
    kept["dnns"] = {
        dnn["name"]: {key: value for key, value in dnn.items() if key != "name"} for dnn in kept["dnns"]
    }
    return kept
