"""Collect a report's values from the output directory of a run in any state.

The ledger contains nearly everything and is the only file that must exist. Each line is written before the
next event is handled, so the ledger is correct even after a kill.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path

from hpcbal.errors import ExitCode, InputError, LedgerError
from hpcbal.kinds import ENSEMBLE, KINDS
from hpcbal.report.model import JobReport, Overhead, Preprocessing, ReportData
from hpcbal.report.reading.replay import Replay
from hpcbal.report.reading.replay_parts import ForecastReplay, SharingReplay
from hpcbal.telemetry.files.atomic_file import cannot_read
from hpcbal.telemetry.files.json_lines import unix_seconds
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.run import RunStartedLine
from hpcbal.telemetry.ledger.scan import LedgerTail
from hpcbal.telemetry.views.evaluation import read_evaluation
from hpcbal.telemetry.views.kinds import AnyStatus, jobs_of, measure_in
from hpcbal.telemetry.views.read_status import read_status
from hpcbal.telemetry.views.results import read_results
from hpcbal.telemetry.views.status import death_note, has_ended
from hpcbal.telemetry.views.summary import BEST, main_metric_of, summary_of

STATE_OF_OUTCOME: Mapping[str, str] = {
    "done": "done",
    "failed-dnns": "done, some DNNs failed",
    "suspended": "stopped",
    "profiled": "profiled",
}


def read_run(directory: str | os.PathLike[str], now: float | None = None) -> ReportData:
    """Return the report's values for the run in `directory`: finished, stopped, failed, killed or running.

    Args:
        directory: output directory of the run, or a copy of it.
        now: Unix seconds (default: the current time).

    Raises:
        InputError: if there is no run, or its files are from another version.
    """
    return RunReading(directory).read(now)


class RunReading:
    """Reads the values of a run's report, again and again as the run goes on; of the ledger only new lines.

    Args:
        directory: output directory of the run, or a copy of it.

    Attributes:
        status: the content of status.json at the last `read`; None if there was none.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.status: AnyStatus | None = None
        self._run = RunDirectory(Path(directory))
        self._begin()

    def _begin(self) -> None:
        self._tail = LedgerTail(self._run.ledger)
        self._replay = Replay()
        self._sharing, self._forecasts = SharingReplay(), ForecastReplay()

    @property
    def start(self) -> RunStartedLine:
        """Return the first line of the last start; there is one after `read`."""
        assert self._replay.start is not None
        return self._replay.start

    def read(self, now: float | None = None) -> ReportData:
        """Return the values of now.

        Args:
            now: Unix seconds (default: the current time).

        Raises:
            InputError: if there is no run, or its files are from another version.
        """
        self._read_ledger()
        run, replay, sharing = self._run, self._replay, self._sharing
        problems = [] if self._tail.problem is None else [self._tail.problem]
        self.status = None
        if os.path.lexists(run.status):
            try:
                self.status = read_status(run.root)
            except InputError as error:  # the ledger holds nearly everything
                problems.append(str(error))
        status, evaluation = self.status, None
        try:
            evaluation = read_evaluation(run.evaluation)
        except InputError as error:
            problems.append(str(error))
        state, note = _state(replay, status, time.time() if now is None else now)
        note = "; ".join(text for text in (note, *problems) if text)
        end_s = replay.now_s
        if state == "running" and status is not None:
            end_s = (
                replay.start_s[-1] + unix_seconds(status["updated_at"]) - unix_seconds(status["started_at"])
            )
        replay.until_s = end_s = max(replay.now_s, end_s)
        shares = self.start.kind == "jobs"
        costs = sharing.cost_by_job(end_s) if shares else replay.cost_by_dnn()
        if status is not None and self.start.kind != ENSEMBLE.name:  # whose lines hold both
            recorded = {job["name"]: (job["wall_time_s"], job["slot_seconds"]) for job in jobs_of(status)}
            costs |= recorded
        measure, jobs = _jobs(replay, status, run, costs)
        data = ReportData(
            name=replay.name,
            kind="run",
            state=state,
            note=note,
            started_at=replay.started_at,
            duration_s=end_s,
            slot_names=replay.slot_names,
            start_s=tuple(replay.start_s),
            jobs=jobs,
            rounds=replay.round_reports(),
            spans=sharing.spans(end_s) if shares else replay.spans(),
            use=sharing.use(len(replay.slot_names), end_s) if shares else replay.use(),
            rates=(*replay.rates(), *self._forecasts.rates()),
            waits=replay.waits(),
            works=replay.works(),
            left_out=tuple(replay.left_out),
            warnings=tuple(replay.warnings),
            shares={dnn: tuple(points) for dnn, points in replay.shares.items() if points},
            preprocessing=Preprocessing(replay.preprocessor_samples_per_s, len(replay.bad_samples)),
            prediction=replay.prediction,
            facts=_facts(replay),
            run_kind=self.start.kind,
            problem="; ".join(problems),
            measure=measure,
            evaluation=evaluation,
            sharing=sharing.groups(end_s),
            machines=sharing.machines,
            busy=tuple(sharing.busy if shares else replay.busy),
            waiting=sharing.waiting,
            whole=replay.whole,
        )
        return _with_overheads(data, replay.decided_s)

    def _read_ledger(self) -> None:
        run = self._run
        run.check_exists()
        if not run.ledger.exists():
            reason = (
                "the run has not started yet" if run.config.exists() else "not the output directory of a run"
            )
            raise InputError(f"{run.root}: no ledger.jsonl: {reason}")
        try:
            entries = self._tail.read()
            if entries is None:
                self._begin()
                entries = self._tail.read() or []
        except OSError as error:
            raise InputError(cannot_read(run.ledger, error)) from error
        for entry in entries:
            try:
                self._replay.take(entry)
                self._sharing.take(self._replay.now_s, entry.line)
                self._forecasts.take(entry.line)
            except ValueError as error:
                raise LedgerError(
                    f"{run.ledger}: line {entry.seq} ({entry.line.event}) contradicts earlier lines "
                    f"({error}); the file is damaged: restore it"
                ) from error
        if not self._replay.start_s:
            raise InputError(f"{run.ledger}: no run has started here yet; start it with 'hpcbal run'")


def _state(replay: Replay, status: AnyStatus | None, now: float) -> tuple[str, str]:
    """(state, note) of the run; the ledger takes precedence if it contains the end of the last start."""
    if replay.outcome is not None:
        return STATE_OF_OUTCOME.get(replay.outcome, replay.outcome), _how_to_go_on(replay)
    if status is None or has_ended(status):  # killed before this start wrote a status
        return "interrupted", "the run was killed; run the same command again to resume it"
    death = death_note(status, now)
    if death is not None:
        return "interrupted", death
    return "running", f"as of {status['updated_at']}"


def _how_to_go_on(replay: Replay) -> str:
    if replay.outcome != "suspended":
        return ""
    if replay.exit_code == ExitCode.RUN_AGAIN:
        return "run the same command again to resume it"
    return "stopped by an error (see the logs): fix its cause and run the same command again"


def _jobs(
    replay: Replay,
    status: AnyStatus | None,
    run: RunDirectory,
    costs: Mapping[str, tuple[float, float]],
) -> tuple[str, tuple[JobReport, ...]]:
    """The key of the measure by which the jobs are compared, and the jobs."""
    states = {job["name"]: job["state"] for job in jobs_of(status)} if status is not None else {}
    most = {job["name"]: job["max_epochs"] for job in jobs_of(status)} if status is not None else {}
    names = list(states) or list(dict.fromkeys([*costs, *replay.failed]))
    epochs = {name: [point.metrics for point in replay.curves.get(name, ())] for name in names}
    numbers_of = {name: [point.epoch for point in replay.curves.get(name, ())] for name in names}
    kind, main = KINDS[_start_of(replay).kind], ""
    if status is not None and kind is not ENSEMBLE:  # apps name the metric by which their jobs are compared
        mains = {str(job.get("main_metric", "")) for job in jobs_of(status)}
        main = mains.pop() if len(mains) == 1 else ""
    summaries = {name: summary_of(epochs[name], numbers_of[name], main) for name in names}
    measure = measure_in(kind, BEST + (main or main_metric_of(epochs.values())))
    is_validated = any(numbers.get("best_val_loss") is not None for numbers in summaries.values())
    loss = "val_loss" if is_validated else "loss"
    settings = _settings(run)
    jobs = []
    for name in names:
        job = _dnn(name, replay, states.get(name, "waiting"), *costs.get(name, (0.0, 0.0)))
        numbers = summaries[name]
        best_epoch = numbers["best_epoch"]
        jobs.append(
            dataclasses.replace(
                job,
                best=numbers.get(measure.best_key),
                final=numbers.get(measure.final_key),
                best_epoch=None if best_epoch is None else int(best_epoch),
                best_loss=numbers.get(f"best_{loss}"),
                final_loss=numbers.get(f"final_{loss}"),
                settings=settings.get(name, {}),
                max_epochs=most.get(name),
            )
        )
    return measure.best_key, tuple(jobs)


def _settings(run: RunDirectory) -> Mapping[str, Mapping[str, str]]:
    """The settings of each DNN, from the table that a run writes at its start; none if that is damaged."""
    try:
        return {row.name: row.settings for row in read_results(run.results)}
    except InputError:
        return {}


def _dnn(name: str, replay: Replay, status: str, wall_time_s: float, slot_seconds: float) -> JobReport:
    curve = tuple(replay.curves.get(name, ()))
    cause, detail = replay.failed.get(name, ("", ""))
    state = status
    if cause:
        state = "failed"
    elif name in replay.done:
        state = "done"
    elif name in replay.pruned:
        state = "pruned"
    elif name in replay.stopped:
        state = "stopped"
    kept = next((line for line in replay.best.get(name, ())[-1:] if line.epoch), None)
    return JobReport(
        name=name,
        state=state,
        epochs=len(curve),
        wall_time_s=wall_time_s,
        slot_seconds=slot_seconds,
        cause=cause,
        detail=detail,
        curve=curve,
        kept_best_epoch=None if kept is None else kept.epoch,
        kept_best_metric="" if kept is None else kept.metric,
        kept_best_value=None if kept is None else kept.value,
        kept_last_epoch=replay.last_saved.get(name),
    )


def _start_of(replay: Replay) -> RunStartedLine:
    """The first line of the last start; `_replay` ensures that there is one."""
    assert replay.start is not None
    return replay.start


def _facts(replay: Replay) -> tuple[tuple[str, str], ...]:
    start = _start_of(replay)
    hosts = list(dict.fromkeys(node.host for node in start.nodes))
    shown = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
    facts = [
        ("paradigm", start.paradigm),
        ("last schedule", replay.schedule),
        ("nodes", f"{len(start.nodes)} ({shown})"),
        (f"{KINDS[start.kind].slot}s", len(replay.slot_names)),
        ("ranks", start.num_ranks),
        ("device", start.device),
        ("seed", start.seed),
        ("starts", len(replay.start_s)),
        *start.versions.items(),
    ]
    return tuple((name, str(value)) for name, value in facts if value is not None)


def _with_overheads(data: ReportData, decided_s: float) -> ReportData:
    """`data` with the overheads, neither training nor waiting; only ensembles profile and form rounds."""
    kind = data.kind_of_run
    scheduling = decided_s / data.duration_s if data.duration_s > 0.0 else 0.0
    overheads: tuple[Overhead, ...] = (
        Overhead("profiling", data.use_share("profiling"), "measuring rates before the first round"),
        Overhead("scheduling", scheduling, f"making decisions; counted as if all {kind.slot}s had waited"),
        Overhead(kind.uses.get("starting", "starting"), data.use_share("starting"), "until the first step"),
        Overhead("checkpointing", data.use_share("checkpoint"), "training paused; writing in the background"),
    )
    if data.run_kind != "ensemble":
        overheads = tuple(each for each in overheads if each.share > 0.0)
    return dataclasses.replace(data, overheads=overheads)
