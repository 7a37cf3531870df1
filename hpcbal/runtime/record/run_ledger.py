"""Write the run's ledger, its status and its timeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hpcbal.cluster.layout import Cluster
from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.control.ensemble import Ensemble
from hpcbal.events.ensemble import DnnFailed, LeaveOut, StartGroup, StartRound, StopStream
from hpcbal.events.line import Line
from hpcbal.runtime.record.accounts import Accounts, PreprocessingStats, SavedEpochs
from hpcbal.runtime.record.group_watch import GroupWatch
from hpcbal.runtime.record.remembered import expected_startup_s
from hpcbal.runtime.resuming.opening import OpenedRun
from hpcbal.telemetry.ledger.account import RunAccount
from hpcbal.telemetry.ledger.dnn_lines import (
    BestKeptLine,
    CheckpointDamagedLine,
    DnnDoneLine,
    DnnPrunedLine,
    DnnRetriedLine,
    DnnStoppedLine,
)
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.ledger.run import NodeFacts, RunFinishedLine, RunStartedLine
from hpcbal.telemetry.resources.processes import environment_versions
from hpcbal.telemetry.streams.slices import Slice, SliceRecorder
from hpcbal.telemetry.streams.timeline import TimelineFile
from hpcbal.telemetry.views.ensemble_table import DnnStatus, EnsembleStatus
from hpcbal.telemetry.views.summary import best_of, main_metric_of

SHOWN_DECISION_S = 5e-4
"""The timeline shows decisions that take longer than this."""


class RunTimeline:
    """Writes slices into the timeline's file, on the tracks of their ranks and nodes.

    Args:
        path: path of the file.
        max_bytes: the value of `timeline.max_bytes`; 0 disables the timeline.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._own = SliceRecorder(SCHEDULER_RANK, enabled=max_bytes > 0)
        self._file = TimelineFile(path, max_bytes)
        self._node_of_rank: Sequence[int] = (0,)
        self._rank_of_slot: Sequence[int] = ()

    def name_tracks(self, roles: Roles) -> None:
        """Name each rank's track after its role; called at each start, because roles may change."""
        self._node_of_rank, self._rank_of_slot = roles.node_of_rank, roles.trainer_ranks
        for info in roles.ranks:
            node = f"node {info.node} ({info.host})"
            self._file.name_track(info.rank, info.node, node, roles.title_of(info.rank))

    def add_decision(self, began_s: float, seconds: float) -> None:
        """Add a decision of the state machine, if it took long enough to show."""
        if seconds > SHOWN_DECISION_S:
            self._own.add("decide", began_s, began_s + seconds)

    def add(self, rank: int, slices: Sequence[Slice]) -> None:
        """Add slices of a rank."""
        self._file.add(rank, self._node_of_rank[rank], slices)

    def mark(self, slot: int, what: Slice) -> None:
        """Add a mark to a slot's track."""
        self.add(self._rank_of_slot[slot], [what])

    def flush(self) -> None:
        """Write what has been added."""
        self.add(SCHEDULER_RANK, self._own.take())
        self._file.flush()

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        self._file.close()


PHASES = {"new": "starting", "round": "training", "choosing": "training"}
"""Phases of the state machine that have another name for users."""


def fill_status(
    status: EnsembleStatus,
    ensemble: Ensemble,
    stats: PreprocessingStats,
    accounts: Accounts,
    watch: GroupWatch,
    saved: SavedEpochs,
) -> None:
    """Update what changes in `status`, except for the prediction and the end."""
    snapshot = ensemble.snapshot()
    status["preprocessing"] = {
        "preprocessors": ensemble.plan.num_preprocessors if ensemble.plan is not None else 0,
        "samples_per_s": stats.samples_per_s or 0.0,
        "bad_samples": len(stats.bad),
    }
    phase = PHASES.get(snapshot["phase"], snapshot["phase"])
    status["phase"] = "suspending" if snapshot["suspending"] and phase != "finished" else phase
    status["round"] = snapshot["round"]
    status["pass"] = snapshot["pass_index"]
    status["busy_slots"] = len({slot for dnn in snapshot["dnns"].values() for slot in dnn["slots"]})
    status["dnns"] = []
    epochs_by_dnn = {n: [record.metrics for record in dnn.history] for n, dnn in ensemble.state.dnns.items()}
    main = main_metric_of(epochs_by_dnn.values())
    for name, dnn in snapshot["dnns"].items():
        account = accounts.now(name)
        entry: DnnStatus = {
            "name": name,
            "state": dnn["state"],
            "epochs": dnn["epochs"],
            "max_epochs": dnn["max_epochs"],
            "metrics": dnn["metrics"],
            "main_metric": main,
            "best": best_of(epochs_by_dnn[name], main),
            "slots": dnn["slots"],
            "wall_time_s": account.wall_time_s,
            "slot_seconds": account.slot_seconds,
            "cause": dnn["cause"] or "",
            "detail": dnn["detail"] or "",
        }
        if (weights := saved.status(name)) is not None:
            entry["weights"] = weights
        if dnn["left_out"]:
            entry["left_out"] = dnn["left_out"]
        if name in watch.stragglers:
            found = watch.stragglers[name]
            entry["straggler"] = {"slot": found.slot, "why": found.why, "late_s": found.late_s}
        if name in watch.works:
            work = watch.works[name]
            entry["work"] = {
                "relative": list(work.relative),
                "imbalance_left": work.imbalance_left,
                "waited": work.waited,
            }
        status["dnns"].append(entry)


DURABLE = (
    RunStartedLine,
    RunFinishedLine,
    StartRound,
    StartGroup,
    StopStream,
    LeaveOut,
    DnnDoneLine,
    DnnPrunedLine,
    DnnStoppedLine,
    DnnFailed,
    DnnRetriedLine,
)
"""Lines that must survive the loss of the node, because the next start depends on them."""


class RunLedger:
    """Appends lines; knows which lines must be durable.

    Args:
        ledger: the run's ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def handle(self, line: Line) -> None:
        """Write one line, unless its kind is not written."""
        if line.event:
            self._ledger.append(line, durable=isinstance(line, DURABLE))

    @property
    def account(self) -> RunAccount:
        """Return the sums of the run's lines; see `Ledger`."""
        return self._ledger.account

    def check(self) -> None:
        """Check that the ledger is still the file under its name; see `Ledger.check`."""
        self._ledger.check()

    def append_start(self, opened: OpenedRun, cluster: Cluster, num_ranks: int, device: str) -> None:
        """Write the first lines of a start.

        Args:
            device: the device that the trainers compute on.
        """
        self.handle(
            RunStartedLine(
                kind="ensemble",
                name=opened.config.name,
                resumed=opened.claim.resumed,
                nodes=tuple(NodeFacts(node.host, node.num_slots) for node in cluster.nodes),
                num_ranks=num_ranks,
                device=device,
                seed=opened.config.seed,
                paradigm=opened.config.schedule.paradigm,
                regroup=opened.config.balance.regroup,
                versions=environment_versions(),
                opening_s=time.time() - opened.request.started_s,
                has_changed=opened.claim.resumed and bool(opened.claim.notes),
                computed_by=opened.config.computed_by,
                expected_startup_s=expected_startup_s(opened.config),
            )
        )
        for dnn_id in opened.earlier.retried:
            self.handle(DnnRetriedLine(dnn_id))
        for dnn_id in opened.earlier.stopped:
            progress = opened.earlier.resume.dnns[dnn_id]
            self.handle(DnnStoppedLine(dnn_id, progress.detail, progress.epochs))
        for warning in opened.earlier.warnings:
            self.handle(CheckpointDamagedLine(warning))
        for line in opened.earlier.unrecorded:
            self.handle(line)
        for dnn_id in opened.earlier.other_best:
            saved = opened.earlier.saved[dnn_id]
            self.handle(BestKeptLine(dnn_id, saved.best, saved.metric, saved.value, 0.0, 0.0))
