"""All that rank 0 writes about a run: ledger, metrics, status, profile, plan, results, timeline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.control import Ensemble
from hpcbal.control.messages import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    Event,
    Finish,
    GroupLeft,
    GroupPlan,
    Instruction,
    LeaveOut,
    LeaveRound,
    NextPass,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    StartAlone,
    Started,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendRequested,
)
from hpcbal.control.resume_json import round_plan_to_dict
from hpcbal.runtime.handoff.finished import CODE_OF_END, files_line
from hpcbal.runtime.record.accounts import Accounts
from hpcbal.runtime.record.group_watch import GroupWatch
from hpcbal.runtime.record.outlook import Outlook, Outlooks
from hpcbal.runtime.record.preprocessing_stats import PreprocessingStats
from hpcbal.runtime.record.run_status import best_accuracy, fill_status
from hpcbal.runtime.resuming.kept_profile import KeptProfile
from hpcbal.runtime.resuming.opening import OpenedRun
from hpcbal.runtime.resuming.resume import Account
from hpcbal.telemetry import (
    MetricsWriter,
    ResultRow,
    environment_versions,
    new_status,
    render_results,
    write_json_atomic,
    write_results,
    write_status,
)
from hpcbal.telemetry.streams.slices import Slice, SliceRecorder, mark
from hpcbal.telemetry.streams.timeline import TimelineFile
from hpcbal.telemetry.views.status import end_status
from hpcbal.telemetry.views.table import telling_line

STATUS_INTERVAL_S = 2.0
SHOWN_DECISION_S = 5e-4
"""The timeline shows decisions that take longer than this."""


class Journal:
    """Writes what happens; decides nothing. `Console` is what tells people.

    Args:
        opened: the run's directory and ledger.
        num_gpus: slots of the cluster.
        rate_key_by_dnn: names the entries of profile.json.
    """

    def __init__(self, opened: OpenedRun, num_gpus: int, rate_key_by_dnn: Mapping[str, str]) -> None:
        self._run = opened.run
        self._lock = opened.lock
        self._ledger = opened.ledger
        self._profile = KeptProfile(opened.run.profile, rate_key_by_dnn)
        self._metrics = MetricsWriter(opened.run.root)
        self._status = new_status(opened.config.name, num_gpus, heartbeat_s=STATUS_INTERVAL_S)
        self._status_due_s = 0.0
        self._outlooks = Outlooks(started_s=time.monotonic())
        earlier = opened.earlier.accounts
        self._accounts = Accounts({dnn.name: earlier.get(dnn.name, Account()) for dnn in opened.config.dnns})
        self._round_plans: list[Mapping[str, Any]] = list(opened.earlier.round_plans)
        self._watch = GroupWatch()
        self._done: set[str] = set()
        self._decided_s = 0.0
        timeline = opened.config.timeline
        self._slices = SliceRecorder(0, enabled=timeline.max_bytes > 0)
        self._timeline = TimelineFile(opened.run.timeline, timeline.max_bytes)
        self._node_of_rank: Sequence[int] = (0,)
        self._rank_of_gpu: Sequence[int] = ()
        for dnn_id, progress in opened.earlier.resume.dnns.items():
            if opened.resumed:
                self._metrics.rewind(dnn_id, progress.epochs, progress.history)

    # ---- what the state machine sees and says --------------------------------------------------

    def note_start(self, opened: OpenedRun, nodes: list[dict[str, Any]], num_ranks: int, device: str) -> None:
        """The first line of each start."""
        self._ledger.append(
            "run-started",
            durable=True,
            name=opened.config.name,
            resumed=opened.resumed,
            nodes=nodes,
            num_ranks=num_ranks,
            device=device,
            seed=opened.config.seed,
            paradigm=opened.config.schedule.paradigm,
            regroup=opened.config.balance.regroup,
            versions=environment_versions(),
        )
        for dnn_id in opened.earlier.retried:
            self._ledger.append("dnn-retried", durable=True, dnn=dnn_id)
        for warning in opened.earlier.warnings:
            self._ledger.append("checkpoint-damaged", detail=warning)

    def name_tracks(self, roles: Roles) -> None:
        """Tell the timeline who is who; at each start, since roles may change."""
        self._node_of_rank, self._rank_of_gpu = roles.node_of_rank, roles.trainer_ranks
        for info in roles.ranks:
            node = f"node {info.node} ({info.host})"
            self._timeline.name_track(info.rank, info.node, node, roles.title_of(info.rank))

    def note_decision(self, began_s: float, seconds: float) -> None:
        """What the state machine took to decide on one event; the sum is told at the end."""
        self._decided_s += seconds
        if seconds > SHOWN_DECISION_S:
            self._slices.add("decide", began_s, began_s + seconds)

    def note_slices(self, rank: int, slices: Sequence[Slice]) -> None:
        """What a rank did when, for the timeline."""
        self._timeline.add(rank, self._node_of_rank[rank], slices)

    def note_event(self, event: Event, ensemble: Ensemble) -> None:
        """After the state machine has taken `event` in."""
        match event:
            case RateMeasured():
                self._ledger.append(
                    "rate-measured",
                    dnn=event.dnn_id,
                    num_gpus=event.num_gpus,
                    samples_per_s=event.samples_per_s,
                )
            case PreprocessingMeasured():
                self._ledger.append("preprocessing-measured", samples_per_s=event.samples_per_s)
            case EpochDone():
                self._note_epoch(event, ensemble)
            case DnnFailed():
                self._ledger.append(
                    "dnn-failed", durable=True, dnn=event.dnn_id, cause=event.cause, detail=event.detail
                )
            case SuspendRequested():
                self._ledger.append("suspend-requested", reason=event.reason)
            case CheckpointWritten() | GroupLeft() | Started():
                pass
        self._note_done(ensemble)

    def note_facts(self, event: Event, facts: Mapping[str, Any]) -> list[str]:
        """As soon as a message has arrived: what is measured by the clock.

        Returns: what people are to be told of it.
        """
        notes: list[str] = []
        match event:
            case RateMeasured():
                self._profile.note_start(event.dnn_id, facts["start_s"])
            case EpochDone():
                more, notes = self._look_at_ranks(event, facts)
                self._ledger.append(
                    "epoch-done",
                    dnn=event.dnn_id,
                    pass_index=event.pass_index,
                    seconds=event.seconds,
                    busy_s=event.busy_s,
                    metrics=event.metrics,
                    **facts,
                    **more,
                )
            case CheckpointWritten():
                self._ledger.append(
                    "checkpoint-written",
                    dnn=event.dnn_id,
                    epoch=event.epoch,
                    pass_index=event.position.pass_index,
                    offset=event.position.offset,
                    **facts,
                )
            case GroupLeft():
                self._note_left(event.dnn_id)
        return notes

    def note_instruction(self, instruction: Instruction, ensemble: Ensemble) -> None:
        """Before an instruction is performed: answers may come while it is."""
        match instruction:
            case StartProfiling(groups):
                self.keep_rates(ensemble)
                self._join(groups)
                wave = [{"dnn": group.dnn_id, "gpus": list(group.gpus)} for group in groups]
                self._ledger.append("profiling-started", groups=wave)
            case StartRound(plan):
                self.keep_rates(ensemble)
                self._join(plan.groups)
                self._note_plan("round-started", plan)
            case StartAlone(plan):
                self._join(plan.groups)
                self._note_plan("started-alone", plan)
            case NextPass():
                self._ledger.append(
                    "pass-started", pass_index=instruction.pass_index, dnns=list(instruction.dnn_ids)
                )
            case LeaveOut(dnn_id, gpu):
                self.note_slices(self._rank_of_gpu[gpu], [mark(f"left out of {dnn_id}", {"dnn": dnn_id})])
                self._ledger.append("gpu-left-out", durable=True, dnn=dnn_id, gpu=gpu)
            case LeaveRound():
                self._ledger.append(
                    "leave-round",
                    dnn=instruction.dnn_id,
                    reason=instruction.reason,
                    detail=instruction.detail,
                )
            case StopStream():
                suspended = bool(ensemble.snapshot()["suspending"])
                self._ledger.append(
                    "round-ended",
                    durable=True,
                    index=instruction.index,
                    suspended=suspended,
                    continues=instruction.continues,
                )
            case Finish():
                self.keep_rates(ensemble)
                self._metrics.flush()

    def note_bad_sample(self, sample_id: int, where: str, reason: str) -> None:
        self._ledger.append("bad-sample", sample_id=sample_id, where=where, reason=reason)

    def note_outlook(self, outlook: Outlook) -> bool:
        """A prediction has come; True if it is the first of a start, which is compared with the end."""
        if not self._outlooks.add(outlook):
            return False
        self._ledger.append(
            "prediction",
            wall_time_s=self._outlooks.wall_time_s(outlook),
            remaining_s=outlook.prediction.remaining_s,
        )
        return True

    def finish(self, ensemble: Ensemble, stats: PreprocessingStats, outcome: str, exit_code: int) -> str:
        """The last entries; returns the table for the user."""
        rows = self._rows(ensemble)
        if outcome != "profiled":
            write_results(self._run.results, rows)
        self._metrics.close()
        self._flush_timeline()
        self._timeline.close()
        compared = self._outlooks.compare(time.monotonic()) if outcome in CODE_OF_END else None
        facts: dict[str, Any] = {"outcome": outcome, "exit_code": exit_code, "decided_s": self._decided_s}
        facts |= asdict(compared) if compared is not None else {}
        facts |= {"preprocessed_samples": stats.samples_made, "preprocessing_s": stats.busy_s}
        self._ledger.append("run-finished", durable=True, **facts)
        self._renew_status(ensemble, stats)
        end_status(self._status, outcome, exit_code)
        write_status(self._run.status, self._status)
        if outcome == "profiled":
            return f"rates: {self._run.profile} (see 'hpcbal plan')"
        lines = [render_results(rows), files_line(self._run)]
        if compared is not None:
            lines.append(compared.line())
        return "\n".join(lines)

    # ---- status --------------------------------------------------------------------------------

    def heartbeat(self, ensemble: Ensemble, stats: PreprocessingStats) -> None:
        """Renew status.json and the metrics when they are due."""
        if time.monotonic() < self._status_due_s:
            return
        self._lock.check()
        self._status_due_s = time.monotonic() + STATUS_INTERVAL_S
        self._renew_status(ensemble, stats)
        write_status(self._run.status, self._status)
        self._metrics.flush_if_due()
        self._flush_timeline()

    def _renew_status(self, ensemble: Ensemble, stats: PreprocessingStats) -> None:
        fill_status(self._status, ensemble, stats, self._accounts, self._watch.stragglers)
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

    def _note_plan(self, event: str, plan: RoundPlan) -> None:
        fields = round_plan_to_dict(plan)
        self._round_plans.append(fields)
        self._ledger.append(event, durable=True, plan=fields)
        write_json_atomic(self._run.plan, {"schema": 1, "rounds": self._round_plans})

    # ---- parts ---------------------------------------------------------------------------------

    def _flush_timeline(self) -> None:
        self.note_slices(SCHEDULER_RANK, self._slices.take())
        self._timeline.flush()

    def _note_epoch(self, event: EpochDone, ensemble: Ensemble) -> None:
        history = ensemble.state.dnns[event.dnn_id].history
        if not history or history[-1].pass_index != event.pass_index:
            return  # of a DNN that has failed meanwhile
        gpus = len(ensemble.state.groups[event.dnn_id].gpus)
        self._metrics.write(event.dnn_id, history[-1], {"num_gpus": float(gpus)})

    def _look_at_ranks(self, event: EpochDone, facts: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """What an epoch's ranks tell, for the ledger and for people; the timeline is told here."""
        if event.offered_gpu is not None:
            self._watch.note_offer(event.dnn_id, event.offered_gpu)
        more, notes = self._watch.look(event.dnn_id, facts)
        marked = self._watch.mark(event)
        if marked is not None:
            gpu, late = marked
            self.note_slices(self._rank_of_gpu[gpu], [late])
        return more, notes

    def _note_done(self, ensemble: Ensemble) -> None:
        for dnn_id, dnn in ensemble.state.dnns.items():
            if dnn.state == "done" and dnn_id not in self._done:
                self._done.add(dnn_id)
                self._ledger.append("dnn-done", durable=True, dnn=dnn_id, detail=dnn.detail)

    def _join(self, groups: tuple[GroupPlan, ...]) -> None:
        self._accounts.join(groups)
        self._watch.join(groups)

    def _note_left(self, dnn_id: str) -> None:
        cost = self._accounts.leave(dnn_id)
        self._ledger.append(
            "group-left", dnn=dnn_id, wall_time_s=cost.wall_time_s, slot_seconds=cost.slot_seconds
        )

    def _rows(self, ensemble: Ensemble) -> list[ResultRow]:
        rows = []
        for name, dnn in ensemble.state.dnns.items():
            cause = f"{dnn.cause}: {telling_line(dnn.detail)}" if dnn.cause else ""
            rows.append(
                ResultRow(
                    name=name,
                    state=str(dnn.state),
                    epochs=dnn.epochs,
                    best_val_accuracy=best_accuracy(ensemble, name),
                    wall_time_s=self._accounts.now(name).wall_time_s,
                    slot_seconds=self._accounts.now(name).slot_seconds,
                    cause=cause,
                )
            )
        return rows
