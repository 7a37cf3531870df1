"""Write the files of a run on rank 0: ledger, metrics, status, profile, results, timeline."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import cast

from hpcbal.checkpoint import has_trained
from hpcbal.cluster.roles import Roles
from hpcbal.control import DnnState, Ensemble, IdleSlots
from hpcbal.control.messages import (
    CheckpointWritten,
    ChooseSchedule,
    EpochDone,
    Event,
    Finish,
    GroupLeft,
    GroupPlan,
    Instruction,
    LeaveOut,
    RateMeasured,
    StartAlone,
    StartProfiling,
    StartRound,
)
from hpcbal.errors import CheckpointError
from hpcbal.runtime.handoff.finished import CODE_OF_END, files_line
from hpcbal.runtime.record.accounts import Accounts, PreprocessingStats, SavedEpochs
from hpcbal.runtime.record.console import ResultTable
from hpcbal.runtime.record.forecast import Outlook, Outlooks
from hpcbal.runtime.record.group_watch import GroupWatch
from hpcbal.runtime.record.run_ledger import RunLedger, RunTimeline, fill_status
from hpcbal.runtime.resuming.known_rates import KeptProfile
from hpcbal.runtime.resuming.opening import OpenedRun
from hpcbal.runtime.resuming.resume import Account
from hpcbal.runtime.wire.protocol import BestKept, CheckpointFacts, InitialWeights, ProfileFacts
from hpcbal.telemetry import (
    MetricsWriter,
    new_status,
    render_results,
    write_results,
    write_status,
)
from hpcbal.telemetry.ledger import (
    BadSampleLine,
    BestKeptLine,
    EpochFacts,
    GroupLeftLine,
    InitialWeightsLine,
    ModelWarningLine,
    PredictionLine,
    RunFinishedLine,
)
from hpcbal.telemetry.ledger.of_control import (
    line_of_checkpoint,
    line_of_epoch,
    line_of_event,
    line_of_idle,
    line_of_instruction,
)
from hpcbal.telemetry.ledger.run import Outcome
from hpcbal.telemetry.streams.slices import Slice, mark
from hpcbal.telemetry.views.status import end_status

STATUS_INTERVAL_S = 2.0
MAX_SHOWN = 8
RESULTS_INTERVAL_S = 60.0
"""results.csv is replaced this often while DNNs train..."""
MAX_RESULTS_SHARE = 0.005
"""...or less often, so that this takes at most this share of the scheduler's time."""


class Journal:
    """Writes what happens and decides nothing; `Console` prints for users.

    Args:
        opened: the run's directory and ledger.
        num_gpus: number of slots in the cluster.
        rate_key_by_dnn: the key of each DNN's entry in profile.json.
    """

    def __init__(self, opened: OpenedRun, num_gpus: int, rate_key_by_dnn: Mapping[str, str]) -> None:
        self._run = opened.run
        self._lock = opened.lock
        self._ledger = RunLedger(opened.ledger)
        self._profile = KeptProfile(opened.run.profile, rate_key_by_dnn)
        self._metrics = MetricsWriter(opened.run)
        self._status = new_status(opened.config.name, num_gpus, heartbeat_s=STATUS_INTERVAL_S)
        roots = (str(opened.request.config_path.resolve().parent), os.getcwd())
        self._status["import_roots"] = list(dict.fromkeys(roots))
        self._status_due_s = 0.0
        self._outlooks = Outlooks(started_s=time.monotonic())
        earlier = opened.earlier.accounts
        self._accounts = Accounts({dnn.name: earlier.get(dnn.name, Account()) for dnn in opened.config.dnns})
        self._saved = SavedEpochs(opened.earlier.saved)
        bad_before = opened.earlier.bad_samples
        self._results = ResultTable(opened.config, self._accounts, bad_before, self._saved)
        self._results_due_s = None if opened.request.profile_only else 0.0
        self._most_tried = opened.config.data.max_samples if opened.request.smoke else None
        self._watch = GroupWatch()
        self._initial: dict[str, InitialWeightsLine] = {}
        self._model_warnings: set[tuple[str, str]] = set()
        self._idle: tuple[int, str] | None = None  # the last reason for idle slots
        self._last_facts: dict[str, EpochFacts] = {}  # of the last epoch
        self._decided_s = 0.0
        self._timeline = RunTimeline(opened.run.timeline, opened.config.timeline.max_bytes)
        for dnn_id, progress in opened.earlier.resume.dnns.items():
            if opened.claim.resumed:
                passes = opened.earlier.passes.get(dnn_id, {})
                more = {number: _more_metrics(facts) for number, facts in passes.items()}
                self._metrics.rewind(dnn_id, progress.epochs, progress.history, more)

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

    def note_event(self, event: Event, ensemble: Ensemble) -> None:
        """Record an event; call this after the state machine has handled it."""
        line = line_of_event(event)
        if line is not None:
            self._ledger.append(line)
        if isinstance(event, EpochDone):
            self._note_metrics(event, ensemble)
        self._ledger.append_ended(ensemble)

    def note_facts(
        self, event: Event, facts: ProfileFacts | CheckpointFacts | EpochFacts | None
    ) -> Sequence[str]:
        """Record an event's measurements; call this as soon as the message arrives, because times count.

        Args:
            facts: the facts of the `Happened` message.

        Returns: notes for the user.
        """
        notes: Sequence[str] = ()
        match event, facts:
            case RateMeasured(), ProfileFacts(start_s):
                self._profile.note_start(event.dnn_id, start_s)
            case EpochDone(), EpochFacts():
                self._last_facts[event.dnn_id] = facts
                notes = self._note_epoch(event, facts)
            case CheckpointWritten(), CheckpointFacts(seconds, held_s, only):
                self._saved.note_last(event, only_progress=only)
                self._ledger.append(line_of_checkpoint(event, seconds, held_s, only_progress=only))
            case GroupLeft(dnn_id), _:
                cost = self._accounts.leave(dnn_id)
                self._ledger.append(GroupLeftLine(dnn_id, cost.wall_time_s, cost.slot_seconds))
            case RateMeasured() | EpochDone() | CheckpointWritten(), _:
                raise TypeError(f"{event!r} came with {facts!r}")
        return notes

    def note_instruction(self, instruction: Instruction, ensemble: Ensemble) -> None:
        """Record an instruction; call this before performing it, because answers may arrive meanwhile."""
        match instruction:
            case StartProfiling(groups):
                self.keep_rates(ensemble)
                self._join(groups)
            case ChooseSchedule():
                self.keep_rates(ensemble)
            case StartRound(plan):
                self.keep_rates(ensemble)
                self._join(plan.groups)
            case StartAlone(plan):
                self._join(plan.groups)
            case LeaveOut(dnn_id, gpu):
                self._timeline.mark(gpu, mark(f"left out of {dnn_id}", {"dnn": dnn_id}))
            case Finish():
                self.keep_rates(ensemble)
                self._metrics.flush()
        line = line_of_instruction(instruction, suspending=bool(ensemble.state.suspend_reason))
        if line is not None:
            self._ledger.append(line)

    def note_idle(self, idle: IdleSlots) -> bool:
        """Record idle slots; False if the same reason has been recorded for this round."""
        reason = idle.round_index, idle.why
        if reason == self._idle:
            return False
        self._idle = reason
        self._ledger.append(line_of_idle(idle))
        return True

    def note_bad_sample(self, sample_id: int, where: str, reason: str) -> None:
        """Record a sample that cannot be used."""
        self._ledger.append(BadSampleLine(sample_id, where, reason))

    def note_model_warning(self, dnn_id: str, text: str) -> bool:
        """Record a warning about a DNN's model; False if it is known: each group builds the model."""
        if (dnn_id, text) in self._model_warnings:
            return False
        self._model_warnings.add((dnn_id, text))
        self._ledger.append(ModelWarningLine(dnn_id, text))
        return True

    def note_initial(self, start: InitialWeights) -> None:
        """Record which weights a DNN starts from; again only if the file has changed since."""
        line = InitialWeightsLine(start.dnn_id, start.path, start.digest, start.which, start.num_layers)
        if self._initial.get(start.dnn_id) != line:
            self._initial[start.dnn_id] = line
            self._ledger.append(line)

    def note_best(self, kept: BestKept) -> None:
        """Record that the weights of a DNN's best epoch so far are on disk."""
        self._saved.note_best(kept)
        costs = kept.seconds, kept.held_s
        self._ledger.append(BestKeptLine(kept.dnn_id, kept.epoch, kept.metric, kept.value, *costs))

    def note_outlook(self, outlook: Outlook) -> bool:
        """Record a prediction; True if it is the first of this start, which is compared with the end."""
        if not self._outlooks.add(outlook):
            return False
        remaining_s = outlook.prediction.remaining_s
        self._ledger.append(PredictionLine(self._outlooks.wall_time_s(outlook), remaining_s))
        return True

    def check_kept(self, ensemble: Ensemble) -> CheckpointError | None:
        """Check, before the run is called done, that what it has trained is still on disk.

        Returns:
            The error, if checkpoints of DNNs that are done are gone or cut off.

        Raises:
            OutputError: if the ledger was removed or replaced.
        """
        self._ledger.check()
        lost = [
            name
            for name, dnn in ensemble.state.dnns.items()
            if dnn.state == DnnState.DONE
            and not has_trained(self._run.job(name), name, dnn.epochs, thoroughly=False)
        ]
        if not lost:
            return None
        more = f" and {len(lost) - MAX_SHOWN} more" if len(lost) > MAX_SHOWN else ""
        return CheckpointError(
            f"{self._run.job(lost[0]).parent}: the weights of {', '.join(lost[:MAX_SHOWN])}{more} were "
            "removed or cut off after they were written; run the same command again to train what is missing"
        )

    def finish(self, ensemble: Ensemble, stats: PreprocessingStats, outcome: str, exit_code: int) -> str:
        """Write the last entries and results; returns the results table for the user."""
        rows = self._results.rows(ensemble, stats.bad)
        if outcome != "profiled":
            write_results(self._run.results, rows)
        self._metrics.close()
        self._timeline.close()
        compared = self._outlooks.compare(time.monotonic()) if outcome in CODE_OF_END else None
        self._ledger.append(
            RunFinishedLine(
                outcome=cast(Outcome, outcome),
                exit_code=exit_code,
                decided_s=self._decided_s,
                num_preprocessed=stats.samples_made,
                preprocessing_s=stats.busy_s,
                predicted_s=None if compared is None else compared.predicted_s,
                actual_s=None if compared is None else compared.actual_s,
            )
        )
        self._renew_status(ensemble, stats)
        end_status(self._status, outcome, exit_code)
        write_status(self._run.status, self._status)
        if outcome == "profiled":
            return f"rates: {self._run.profile} (see 'hpcbal plan')"
        lines = [render_results(rows), files_line(self._run)]
        if compared is not None:
            lines.append(compared.line())
        broken = stats.count_line()
        if broken is not None:
            lines.append(broken)
        if self._most_tried is not None:
            lines.append(
                f"this was a trial: one epoch of each DNN, on at most {self._most_tried} samples; it is not "
                "part of the run, which you start without --smoke"
            )
        return "\n".join(lines)

    # ---- status --------------------------------------------------------------------------------

    def heartbeat(self, ensemble: Ensemble, stats: PreprocessingStats) -> None:
        """Update status.json, results.csv and the metrics if they are due."""
        if time.monotonic() < self._status_due_s:
            return
        self._lock.check()
        self._ledger.check()
        self._status_due_s = time.monotonic() + STATUS_INTERVAL_S
        self._renew_status(ensemble, stats)
        write_status(self._run.status, self._status)
        if self._results_due_s is not None and time.monotonic() >= self._results_due_s:
            began_s = time.monotonic()
            write_results(self._run.results, self._results.rows(ensemble, stats.bad))
            now_s = time.monotonic()
            self._results_due_s = now_s + max(RESULTS_INTERVAL_S, (now_s - began_s) / MAX_RESULTS_SHARE)
        self._metrics.flush_if_due()
        self._timeline.flush()

    def _renew_status(self, ensemble: Ensemble, stats: PreprocessingStats) -> None:
        fill_status(self._status, ensemble, stats, self._accounts, self._watch, self._saved)
        prediction = self._outlooks.status(time.monotonic(), finished=ensemble.finished)
        if prediction is not None:
            self._status["prediction"] = prediction

    # ---- rates ---------------------------------------------------------------------------------

    def keep_rates(self, ensemble: Ensemble) -> None:
        """Write all rates known so far to profile.json."""
        self._profile.write(ensemble.rates, ensemble.state.preprocessing_samples_per_s)

    @property
    def start_s(self) -> Mapping[str, float]:
        """See `KeptProfile.start_s`."""
        return self._profile.start_s

    # ---- parts ---------------------------------------------------------------------------------

    def _note_metrics(self, event: EpochDone, ensemble: Ensemble) -> None:
        history = ensemble.state.dnns[event.dnn_id].history
        if not history or history[-1].pass_index != event.pass_index:
            return  # the DNN has failed meanwhile
        self._metrics.write(event.dnn_id, history[-1], _more_metrics(self._last_facts[event.dnn_id]))

    def _note_epoch(self, event: EpochDone, facts: EpochFacts) -> Sequence[str]:
        """Record an epoch in the ledger and the timeline; returns notes for the user."""
        if event.offered_gpu is not None:
            self._watch.note_offer(event.dnn_id, event.offered_gpu)
        found = self._watch.look(event.dnn_id, facts)
        marked = self._watch.mark(event)
        if marked is not None:
            self._timeline.mark(*marked)
        self._ledger.append(line_of_epoch(event, facts, found.balancing_would_save, found.straggler))
        return found.notes

    def _join(self, groups: tuple[GroupPlan, ...]) -> None:
        self._accounts.join(groups)
        self._watch.join(groups)


def _more_metrics(facts: EpochFacts) -> dict[str, float]:
    """Return the numbers of an epoch that stand beside its metrics."""
    num_gpus = 1 if facts.ranks is None else len(facts.ranks.samples)
    rate = {} if facts.learning_rate is None else {"learning_rate": float(facts.learning_rate)}
    return {"num_gpus": float(num_gpus), **rate}
