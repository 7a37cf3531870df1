"""Give each line of a run to its subscribers, which write its files and print, on rank 0."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from hpcbal.checkpoint.weights import has_trained
from hpcbal.cluster.roles import Roles
from hpcbal.config import EnsembleConfig, resolved_yaml
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.states import DnnState
from hpcbal.errors import LAST_OUTCOMES, HpcbalError
from hpcbal.events.ensemble import (
    ChooseSchedule,
    EpochDone,
    Finish,
    GroupLeft,
    IdleSlots,
    LeaveOut,
    RateMeasured,
    StartProfiling,
    StartRound,
)
from hpcbal.events.history import EpochFacts, EpochRecord
from hpcbal.events.line import Line
from hpcbal.kinds import ENSEMBLE
from hpcbal.planning.calibration import RunKey
from hpcbal.runtime.handoff.finished import files_line
from hpcbal.runtime.record.accounts import Accounts, PreprocessingStats, SavedEpochs
from hpcbal.runtime.record.console import Console, ResultTable
from hpcbal.runtime.record.forecast import RunPrediction, RunPredictions
from hpcbal.runtime.record.group_watch import GroupWatch
from hpcbal.runtime.record.remembered import remember_run, whole_lines
from hpcbal.runtime.record.run_ledger import RunLedger, RunTimeline, fill_status
from hpcbal.runtime.resuming.known_rates import KeptProfile
from hpcbal.runtime.resuming.opening import OpenedRun
from hpcbal.runtime.resuming.resume import Account
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.ledger.dnn_lines import (
    DnnDoneLine,
    DnnPrunedLine,
    DnnStoppedLine,
    InitialWeightsLine,
    ModelWarningLine,
)
from hpcbal.telemetry.ledger.run import Outcome, PredictionLine, RunFinishedLine
from hpcbal.telemetry.streams.metrics import MetricsWriter
from hpcbal.telemetry.streams.slices import Slice, mark
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.results import render_results, write_results
from hpcbal.telemetry.views.status import end_status, write_status

STATUS_INTERVAL_S = 2.0
MAX_SHOWN = 8
RESULTS_INTERVAL_S = 60.0
"""results.csv is replaced this often while DNNs train..."""
MAX_RESULTS_SHARE = 0.005
"""...or less often, so that this takes at most this share of the scheduler's time."""


_LINE_OF_END: Mapping[DnnState, type[DnnDoneLine | DnnPrunedLine | DnnStoppedLine]] = {
    DnnState.DONE: DnnDoneLine,
    DnnState.PRUNED: DnnPrunedLine,
    DnnState.STOPPED: DnnStoppedLine,
}


class Journal:
    """Gives each line of the run to its subscribers: ledger, profile, metrics, timeline, console.

    It decides nothing. Status and results are renewed from the ensemble's state whenever they are due.

    Args:
        opened: the run's directory and ledger.
        ensemble: the state machine whose events and instructions are published.
        console: prints for users.
        num_slots: number of slots in the cluster.
        rate_key_by_dnn: the key of each DNN's entry in profile.json.
    """

    def __init__(
        self,
        opened: OpenedRun,
        ensemble: Ensemble,
        console: Console,
        num_slots: int,
        rate_key_by_dnn: Mapping[str, str],
    ) -> None:
        self._ensemble = ensemble
        self._console = console
        self._run = opened.run
        self._lock = opened.lock
        self._ledger = RunLedger(opened.ledger)
        self._profile = KeptProfile(opened.run.profile, rate_key_by_dnn)
        self._metrics = MetricsWriter(opened.run)
        self._status = new_status(opened.config.name, num_slots, heartbeat_s=STATUS_INTERVAL_S)
        roots = (str(opened.request.config_path.resolve().parent), os.getcwd())
        self._status["import_roots"] = list(dict.fromkeys([*roots, *opened.import_roots]))
        self._status_due_s = 0.0
        self._predictions = RunPredictions(started_s=time.monotonic())
        earlier = opened.earlier.accounts
        self._accounts = Accounts({dnn.name: earlier.get(dnn.name, Account()) for dnn in opened.config.dnns})
        self._saved = SavedEpochs(opened.earlier.saved)
        bad_before = opened.earlier.bad_samples
        self._results = ResultTable(opened.config, self._accounts, bad_before, self._saved)
        self._results_due_s = None if opened.request.profile_only else 0.0
        self._config = opened.config
        self._most_tried = opened.config.data.max_samples if opened.request.smoke else None
        self._watch = GroupWatch()
        self._told: dict[tuple[str, ...], Any] = {}  # see `_is_news`
        self._decided_s = 0.0
        self._timeline = RunTimeline(opened.run.timeline, opened.config.timeline.max_bytes)
        self._subscribers: Sequence[Callable[[Line], None]] = (
            self._console.handle,
            self._ledger.handle,
            self._accounts.handle,
            self._watch.handle,
            self._saved.handle,
            self._keep_rates,
            self._write_metrics,
            self._mark_timeline,
        )
        for dnn_id, progress in opened.earlier.resume.dnns.items():
            if opened.claim.resumed:
                passes = opened.earlier.passes.get(dnn_id, {})
                more = {number: _more_metrics(facts) for number, facts in passes.items()}
                self._metrics.rewind(dnn_id, progress.epochs, progress.history, more)

    def admit(self, config: EnsembleConfig, rate_key_by_dnn: Mapping[str, str], roots: Sequence[str]) -> None:
        """Take in DNNs that join: from now on the run's directory has them, too.

        Args:
            config: with all DNNs of the run.
            rate_key_by_dnn: with theirs.
            roots: directories with their modules.
        """
        write_atomic(self._run.config, resolved_yaml(config), durable=True)
        self._config = config
        self._profile.admit(rate_key_by_dnn)
        self._accounts.admit(dnn.name for dnn in config.dnns)
        self._results.admit(config)
        self._console.admit(config)
        self._status["import_roots"] = list(dict.fromkeys([*self._status["import_roots"], *roots]))
        self._results_due_s = None if self._results_due_s is None else 0.0

    # ---- what the state machine sees and says --------------------------------------------------

    def note_start(self, opened: OpenedRun, roles: Roles, device: str) -> None:
        """Write the first lines of a start.

        Args:
            device: the device that the trainers compute on.
        """
        self._ledger.append_start(opened, roles.cluster, len(roles.ranks), device)
        self._timeline.name_tracks(roles)

    def note_decision(self, began_s: float, seconds: float) -> None:
        """Record how long the state machine took to handle an event; the sum is written at the end."""
        self._decided_s += seconds
        self._timeline.add_decision(began_s, seconds)

    def note_slices(self, rank: int, slices: Sequence[Slice]) -> None:
        """Add a rank's slices to the timeline."""
        self._timeline.add(rank, slices)

    def publish(self, line: Line) -> None:
        """Give a line to all subscribers: an event when it happens, an instruction before it is performed.

        A warning, initial weights or a reason for idle slots that is known already is not news.
        """
        if not self._is_news(line):
            return
        notes: Sequence[str] = ()
        match line:
            case GroupLeft(dnn_id):
                cost = self._accounts.leave(dnn_id)
                line = replace(line, wall_time_s=cost.wall_time_s, slot_seconds=cost.slot_seconds)
            case EpochDone():
                line, notes = self._watch.completed(line)
        for handle in self._subscribers:
            handle(line)
        for note in notes:
            self._console.note(note)

    def publish_ended(self, names: Collection[str]) -> None:
        """Publish that each of these DNNs is done, pruned or stopped, if it is."""
        for name in names:
            dnn = self._ensemble.state.dnns[name]
            if dnn.state in _LINE_OF_END:
                self.publish(_LINE_OF_END[dnn.state](name, dnn.detail, dnn.epochs))

    def _is_news(self, line: Line) -> bool:
        key: tuple[str, ...]
        value: object
        match line:
            case ModelWarningLine():  # each group builds the model
                key, value = (line.event, line.dnn_id, line.detail), None
            case InitialWeightsLine():  # again only if the file has changed since
                key, value = (line.event, line.dnn_id), line
            case IdleSlots():
                key, value = (line.event,), (line.round_index, line.why)
            case _:
                return True
        is_known = key in self._told and self._told[key] == value
        self._told[key] = value
        return not is_known

    def _keep_rates(self, line: Line) -> None:
        """Write all rates known so far to profile.json before groups start, and at the end."""
        match line:
            case RateMeasured():
                self._profile.note_start(line.dnn_id, line.start_s)
            case StartProfiling() | ChooseSchedule() | StartRound() | Finish():
                self._profile.write(self._ensemble.rates, self._ensemble.state.preprocessing_samples_per_s)

    def _mark_timeline(self, line: Line) -> None:
        """Mark a slot that is left out, and one that its group waited for."""
        match line:
            case LeaveOut(dnn_id, slot):
                self._timeline.mark(slot, mark(f"left out of {dnn_id}", {"dnn": dnn_id}))
            case EpochDone():
                found = self._watch.mark(line)
                if found is not None:
                    self._timeline.mark(*found)

    def _write_metrics(self, line: Line) -> None:
        match line:
            case EpochDone() if (dnn := self._ensemble.state.dnns[line.dnn_id]).is_live:
                record = EpochRecord(dnn.epochs + 1, line.pass_index, dict(line.metrics), line.seconds)
                self._metrics.write(line.dnn_id, record, _more_metrics(line.facts))
            case Finish():
                self._metrics.flush()

    def note_prediction(self, prediction: RunPrediction) -> bool:
        """Record a prediction; True if it is the first of this start, which is compared with the end."""
        if not self._predictions.add(prediction):
            return False
        left = prediction.left
        self._ledger.handle(
            PredictionLine(self._predictions.wall_time_s(prediction), left.remaining_s, left.busy)
        )
        return True

    def check_kept(self) -> HpcbalError | None:
        """Check, before the run is called done, that what it has trained is still on disk.

        Returns:
            The error, if checkpoints of DNNs that are done are gone or cut off.

        Raises:
            OutputError: if the ledger was removed or replaced.
        """
        self._ledger.check()
        lost = [
            name
            for name, dnn in self._ensemble.state.dnns.items()
            if dnn.state == DnnState.DONE
            and not has_trained(self._run.job(name), name, dnn.epochs, thoroughly=False)
        ]
        if not lost:
            return None
        more = f" and {len(lost) - MAX_SHOWN} more" if len(lost) > MAX_SHOWN else ""
        return HpcbalError(
            f"{self._run.job(lost[0]).parent}: the weights of {', '.join(lost[:MAX_SHOWN])}{more} were "
            "removed or cut off after they were written; run the same command again to train what is missing"
        )

    def finish(self, stats: PreprocessingStats, outcome: str, exit_code: int) -> str:
        """Write the last entries and results; returns the results table for the user."""
        rows = self._results.rows(self._ensemble, stats.bad)
        if outcome != "profiled":
            write_results(self._run.results, rows)
        self._metrics.close()
        self._timeline.close()
        is_over = outcome in LAST_OUTCOMES
        compared = self._predictions.compare(time.monotonic()) if is_over else None
        whole = self._ledger.account.whole(time.time()) if is_over else None
        if whole is not None and self._config.backend.workers:
            # `hpcbal plan` simulates the steps of unlike slots, and the prediction of a run does not.
            whole = replace(whole, predicted_s=None, predicted_busy=None)
        self._ledger.handle(
            RunFinishedLine(
                outcome=cast("Outcome", outcome),
                exit_code=exit_code,
                decided_s=self._decided_s,
                num_preprocessed=stats.samples_made,
                preprocessing_s=stats.busy_s,
                num_from_cache=stats.num_from_cache,
                num_fetched=stats.num_fetched,
                predicted_s=None if compared is None else compared.predicted_s,
                actual_s=None if compared is None else compared.actual_s,
                whole=whole,
            )
        )
        if whole is not None and outcome == "done" and self._most_tried is None:
            remember_run(RunKey.of(self._config), whole, self._ledger.account)
        self._renew_status(stats)
        end_status(self._status, outcome, exit_code)
        write_status(self._run.status, self._status)
        if outcome == "profiled":
            return f"rates: {self._run.profile} (see 'hpcbal plan')"
        lines = [render_results(rows), files_line(self._run, ENSEMBLE)]
        if compared is not None:
            lines.append(compared.line())
        if whole is not None:
            lines += whole_lines(whole, ENSEMBLE)
        lines += [line for line in (stats.cache_line(), stats.count_line()) if line is not None]
        if self._most_tried is not None:
            lines.append(
                f"this was a trial: one epoch of each DNN, on at most {self._most_tried} samples; it is not "
                "part of the run, which you start without --smoke"
            )
        return "\n".join(lines)

    # ---- status --------------------------------------------------------------------------------

    def heartbeat(self, stats: PreprocessingStats) -> None:
        """Update status.json, results.csv and the metrics if they are due."""
        if time.monotonic() < self._status_due_s:
            return
        self._lock.check()
        self._ledger.check()
        self._status_due_s = time.monotonic() + STATUS_INTERVAL_S
        self._renew_status(stats)
        write_status(self._run.status, self._status)
        if self._results_due_s is not None and time.monotonic() >= self._results_due_s:
            began_s = time.monotonic()
            write_results(self._run.results, self._results.rows(self._ensemble, stats.bad))
            now_s = time.monotonic()
            self._results_due_s = now_s + max(RESULTS_INTERVAL_S, (now_s - began_s) / MAX_RESULTS_SHARE)
        self._metrics.flush_if_due()
        self._timeline.flush()

    def _renew_status(self, stats: PreprocessingStats) -> None:
        fill_status(self._status, self._ensemble, stats, self._accounts, self._watch, self._saved)
        state = self._ensemble.state
        waiting = [name for name in state.live if name not in state.groups]
        finished = self._ensemble.finished
        prediction = self._predictions.status(time.monotonic(), waiting, finished=finished)
        if prediction is not None:
            self._status["prediction"] = prediction

    @property
    def start_s(self) -> Mapping[str, float]:
        """See `KeptProfile.start_s`."""
        return self._profile.start_s


def _more_metrics(facts: EpochFacts) -> dict[str, float]:
    """Return the numbers of an epoch that stand beside its metrics."""
    known = {"num_slots": facts.num_ranks, "learning_rate": facts.learning_rate}
    return {name: float(number) for name, number in known.items() if number is not None}
