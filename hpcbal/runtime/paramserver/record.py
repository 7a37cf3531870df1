"""Write the files of a parameter-server job on rank 0, and print its progress."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import cast

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.events.line import Line
from hpcbal.forecast.prediction import Prediction
from hpcbal.paramserver.machine import messages
from hpcbal.paramserver.machine.events import End, EpochEnded, Reconfigured, WriteManifest
from hpcbal.paramserver.machine.job import JobMachine
from hpcbal.paramserver.machine.messages import What
from hpcbal.planning.throughput import rate_text
from hpcbal.printable import printable
from hpcbal.processes import say
from hpcbal.runtime.paramserver.opening import OpenedJob
from hpcbal.runtime.record.run_ledger import RunTimeline
from hpcbal.telemetry import MetricsWriter, ResultRow, render_results, write_results, write_status
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.host.processes import environment_versions
from hpcbal.telemetry.ledger import (
    ExecutorsChangedLine,
    JobDoneLine,
    JobEpochLine,
    JobFailedLine,
    JobSavedLine,
    NodeFacts,
    ReconfiguredLine,
    RolesAssignedLine,
    RunFinishedLine,
    RunStartedLine,
    ThroughputForecastLine,
    WorkerFacts,
)
from hpcbal.telemetry.ledger.run import Outcome
from hpcbal.telemetry.streams.slices import Slice, mark
from hpcbal.telemetry.views.kinds import PARAMSERVER
from hpcbal.telemetry.views.paramserver_status import new_paramserver_status
from hpcbal.telemetry.views.status import end_status
from hpcbal.telemetry.views.summary import BEST, best_of, summary_of
from hpcbal.telemetry.views.table import count_text, key_line, number_text

STATUS_INTERVAL_S = 2.0
DURABLE = (RunStartedLine, RunFinishedLine, RolesAssignedLine, JobDoneLine, JobFailedLine)
PHASES = {"new": "starting", "loading": "starting", "initialising": "starting", "ended": "finished"}


class JobRecord:
    """Writes what happens and decides nothing.

    Args:
        opened: the run's directory and ledger.
        roles: the ranks.
        in_use: executors that the job may use.
    """

    def __init__(self, opened: OpenedJob, roles: Roles, in_use: Sequence[int]) -> None:
        self._run, self._lock, self._ledger = opened.run, opened.lock, opened.ledger
        self._config = opened.config
        self._name = opened.config.name
        self._metrics = MetricsWriter(opened.run)
        self._timeline = RunTimeline(opened.run.timeline, opened.config.timeline.max_bytes)
        self._timeline.name_tracks(roles)
        self._status = new_paramserver_status(
            self._name, len(roles.executor_ranks), heartbeat_s=STATUS_INTERVAL_S
        )
        self._status_due_s = 0.0
        self._began_s = self._epoch_began_s = time.monotonic()
        self._in_use = tuple(in_use)
        self._used_s = 0.0  # executor-seconds until `_used_until_s`
        self._used_until_s = self._began_s
        self._turns: dict[int, WorkerFacts] = {}  # of the epoch so far
        self._decided_s = 0.0
        self._saving_since_s = 0.0
        self._reconfiguring_since_s = 0.0
        self._main = ""
        self._earlier_s = 0.0
        history = opened.saved.history if opened.saved is not None else ()
        if opened.claim.resumed:
            self._metrics.rewind(self._name, history[-1].epoch if history else 0, history)
        if opened.last_saved is not None:
            self._earlier_s = opened.last_saved.wall_s or 0.0
            self._used_s = opened.last_saved.used_s or 0.0
        self._append(
            RunStartedLine(
                kind="paramserver",
                name=self._name,
                resumed=opened.claim.resumed,
                nodes=tuple(NodeFacts(node.host, node.num_gpus) for node in roles.cluster.nodes),
                num_ranks=len(roles.ranks),
                device="CPU",
                seed=opened.config.seed,
                paradigm=None,
                regroup=False,
                versions=environment_versions(),
            )
        )

    def _append(self, line: Line) -> None:
        self._ledger.append(line, durable=isinstance(line, DURABLE))

    def note(self, text: str) -> None:
        """Print a line of progress."""
        moment = duration_text(time.monotonic() - self._began_s)
        print(printable(f"{moment:>8}  {text}"), file=sys.stdout, flush=True)

    def note_decision(self, began_s: float, seconds: float) -> None:
        """Add to the time that the machine has taken for decisions."""
        self._decided_s += seconds
        self._timeline.add_decision(began_s, seconds)

    def note_slices(self, rank: int, slices: Sequence[Slice]) -> None:
        """Add a rank's slices to the timeline."""
        self._timeline.add(rank, slices)

    def close_timeline(self) -> None:
        """Write the rest of the timeline; the last call."""
        self._timeline.close()

    def note_start(
        self, machine: JobMachine, num_samples: int, parameter_bytes: int, steps: int | None
    ) -> None:
        """Record who owns what at the start."""
        executors = machine.spec.executors
        counts = {what: tuple(_counts(machine, what)) for what in ("data", "parameters")}
        roles = tuple(machine.role_of(executor) for executor in executors)
        self._append(
            RolesAssignedLine(
                roles, counts["data"], counts["parameters"], num_samples, parameter_bytes, steps
            )
        )
        workers, servers = (sum(role in (name, "both") for role in roles) for name in ("worker", "server"))
        idle = f", {roles.count('standby')} standing by" if "standby" in roles else ""
        size = f"{parameter_bytes / 1e6:.1f} MB of parameters"
        self.note(
            f"{count_text(workers, 'worker')}, {count_text(servers, 'server')}{idle}; "
            f"{count_text(num_samples, 'sample')}, {size}"
        )

    def note_forecast(self, found: Prediction) -> None:
        """Record the throughput that a profile lets expect, for the report."""
        band = found.samples_per_s
        self._append(
            ThroughputForecastLine(
                self._name, found.num_workers, found.num_servers, band.value, band.low, band.high
            )
        )
        self.note(f"forecast: {rate_text(found)}")

    def note_turn(self, executor: int, turn: messages.TurnDone) -> None:
        """Count a turn of a worker."""
        old = self._turns.get(executor, WorkerFacts(executor, 0, 0, 0.0, 0.0, 0.0))
        self._turns[executor] = WorkerFacts(
            executor,
            old.turns + 1,
            old.samples + turn.samples,
            old.compute_s + turn.compute_s,
            old.pull_s + turn.pull_s,
            old.push_s + turn.push_s,
            old.num_bytes + turn.num_bytes,
        )

    def note_epoch(self, ended: EpochEnded, max_epochs: int) -> None:
        """Record an epoch in the ledger and the metrics, and print its line."""
        now_s = time.monotonic()
        seconds, self._epoch_began_s = now_s - self._epoch_began_s, now_s
        metrics = dict(ended.record.metrics) if ended.record is not None else {}
        workers = tuple(self._turns[executor] for executor in sorted(self._turns))
        self._turns = {}
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._append(JobEpochLine(self._name, ended.epoch, seconds, finite, workers))
        if ended.record is not None:
            self._metrics.write(self._name, ended.record, {"num_workers": float(len(workers))})
        shown = ", ".join(f"{name} {number_text(value)}" for name, value in metrics.items())
        self.note(f"epoch {ended.epoch}/{max_epochs}  {seconds:.2f} s" + (f"  {shown}" if shown else ""))

    def note_moving(self, why: str, num_moves: int) -> None:
        """A reconfiguration begins."""
        self._reconfiguring_since_s = time.monotonic()
        self._status["reconfiguring"] = why
        self.note(f"reconfiguring: {why} ({count_text(num_moves, 'move')})")

    def note_reconfigured(self, done: Reconfigured, machine: JobMachine) -> None:
        """A reconfiguration is over, or the start ends amid it."""
        self._status.pop("reconfiguring", None)
        moved = {
            what: sum(len(move.blocks) for move in done.request.moves if move.what == what)
            for what in ("data", "parameters")
        }
        seconds = time.monotonic() - self._reconfiguring_since_s
        roles = tuple(machine.role_of(executor) for executor in machine.spec.executors)
        self._append(
            ReconfiguredLine(
                self._name,
                done.request.why,
                roles,
                moved["data"],
                moved["parameters"],
                seconds,
                done.request.predicted_gain,
            )
        )
        self._timeline.add(SCHEDULER_RANK, [mark(done.request.why, {"seconds": seconds, **moved})])
        counts = (count_text(roles.count(role), role) for role in ("worker", "server"))
        self.note(f"reconfigured in {seconds:.2f} s: {', '.join(counts)}")

    def note_executors(self, in_use: Sequence[int], source: str) -> None:
        """The job has been given executors, or some were taken back."""
        self._count_use()
        gone = len({*self._in_use} - {*in_use})
        come = len({*in_use} - {*self._in_use})
        self._in_use = tuple(in_use)
        self._append(ExecutorsChangedLine(self._name, self._in_use, source))
        changes = [f"{come} more"] * (come > 0) + [f"{gone} taken back"] * (gone > 0)
        self.note(f"{count_text(len(in_use), 'executor')} ({', '.join(changes)}) by {source}")

    def _wall_s(self) -> float:
        """Seconds of the job so far, over all starts."""
        return self._earlier_s + time.monotonic() - self._began_s

    def _count_use(self) -> float:
        """Executor-seconds so far."""
        now_s = time.monotonic()
        self._used_s += (now_s - self._used_until_s) * len(self._in_use)
        self._used_until_s = now_s
        return self._used_s

    def note_pause(self) -> None:
        """The workers pause for a checkpoint."""
        self._saving_since_s = time.monotonic()

    def note_saved(self, manifest: WriteManifest) -> None:
        """A checkpoint is complete."""
        seconds = time.monotonic() - self._saving_since_s
        wall_s, used_s = self._wall_s(), self._count_use()
        self._append(JobSavedLine(self._name, manifest.epoch, manifest.step, seconds, wall_s, used_s))

    # ---- status and results --------------------------------------------------------------------

    def heartbeat(self, machine: JobMachine) -> None:
        """Update status.json and the metrics if they are due."""
        if time.monotonic() < self._status_due_s:
            return
        self._lock.check()
        self._ledger.check()
        self._status_due_s = time.monotonic() + STATUS_INTERVAL_S
        self._fill(machine, None)
        write_status(self._run.status, self._status)
        self._metrics.flush_if_due()
        self._timeline.flush()

    def finish(self, machine: JobMachine, end: End, exit_code: int) -> str:
        """Write the last entries and the results; returns the results table for users."""
        if end.outcome == "done":
            self._append(JobDoneLine(self._name, machine.epochs, end.detail))
        if end.outcome == "failed":
            self._append(JobFailedLine(self._name, machine.epochs, end.cause, end.detail))
        self._metrics.close()
        rows = [self._row(machine, end)]
        write_results(self._run.results, rows, PARAMSERVER)
        self._append(
            RunFinishedLine(
                outcome=cast(Outcome, end.outcome),
                exit_code=exit_code,
                decided_s=self._decided_s,
                num_preprocessed=0,
                preprocessing_s=0.0,
            )
        )
        self._fill(machine, end)
        self._status.pop("reconfiguring", None)
        end_status(self._status, end.outcome, exit_code)
        write_status(self._run.status, self._status)
        files = f"files: {self._run.root}/ (results.csv, ledger.jsonl, {self._run.jobs}/{self._name}/, logs/)"
        return f"{render_results(rows, PARAMSERVER)}\n{files}"

    def show_end(self, table: str, end: End) -> None:
        """Print the results, and what failed or how to go on."""
        print(printable(f"\n{table}"), file=sys.stdout, flush=True)
        if end.cause:
            say(f"hpcbal: {self._name}: {end.detail}")
        elif end.outcome == "suspended":
            say(f"hpcbal: stopped ({end.detail}); run the same command again to resume")

    def _row(self, machine: JobMachine, end: End) -> ResultRow:
        metrics = [record.metrics for record in machine.history]
        epochs = [record.epoch for record in machine.history]
        numbers = summary_of(metrics, epochs) if metrics else {}
        main = self._main_metric(machine)
        best_key = f"{BEST}{main}" if main else PARAMSERVER.main.best_key
        state = {"done": "done", "failed": "failed", "suspended": "training"}[end.outcome]
        return ResultRow(
            name=self._name,
            state=state,
            epochs=machine.epochs,
            best=numbers.pop(best_key, None),
            wall_time_s=self._wall_s(),
            slot_seconds=self._count_use(),
            cause=f"{end.cause}: {key_line(end.detail)}" if end.cause else "",
            numbers=numbers,
            best_key=best_key,
        )

    def _main_metric(self, machine: JobMachine) -> str:
        if not machine.history:
            return ""
        metrics = machine.history[-1].metrics
        return self._config.stop.monitor or next(iter(metrics), "")

    def _fill(self, machine: JobMachine, end: End | None) -> None:
        status, executors = self._status, machine.spec.executors
        state = "training" if end is None else {"suspended": "waiting"}.get(end.outcome, end.outcome)
        status["phase"] = PHASES.get(machine.phase, "training")
        counts = {what: _counts(machine, what) for what in ("data", "parameters")}
        status["executors"] = [
            {
                "rank": executor,
                "role": machine.role_of(executor),
                "data_blocks": counts["data"][i],
                "parameter_blocks": counts["parameters"][i],
                "in_use": executor in self._in_use,
            }
            for i, executor in enumerate(executors)
        ]
        status["busy_gpus"] = sum(each["role"] != "standby" for each in status["executors"])
        main = self._main_metric(machine)
        last = machine.history[-1].metrics if machine.history else {}
        status["jobs"] = [
            {
                "name": self._name,
                "state": state,
                "epochs": machine.epochs,
                "max_epochs": machine.spec.pace.max_epochs,
                "metrics": {name: v if math.isfinite(v) else None for name, v in last.items()},
                "main_metric": main,
                "best": self._best(machine, main),
                "wall_time_s": self._wall_s(),
                "slot_seconds": self._count_use(),
                "cause": "" if end is None else end.cause,
                "detail": "" if end is None else end.detail,
            }
        ]

    def _best(self, machine: JobMachine, main: str) -> float | None:
        return best_of([record.metrics for record in machine.history], main) if main else None


def _counts(machine: JobMachine, what: What) -> list[int]:
    """Blocks of each executor."""
    counts = Counter(machine.owners(what))
    return [counts[executor] for executor in machine.spec.executors]
