"""Write the run's ledger, and plan.json, which lists its rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpcbal.cluster.layout import Cluster
from hpcbal.control import DnnState, Ensemble
from hpcbal.runtime.resuming.opening import OpenedRun
from hpcbal.telemetry import Ledger, environment_versions, write_json_atomic
from hpcbal.telemetry.ledger import (
    BestKeptLine,
    CheckpointDamagedLine,
    DnnDoneLine,
    DnnFailedLine,
    DnnPrunedLine,
    DnnRetriedLine,
    GpuLeftOutLine,
    Line,
    NodeFacts,
    PlanFacts,
    RoundEndedLine,
    RoundStartedLine,
    RunFinishedLine,
    RunStartedLine,
    StartedAloneLine,
)

PLAN_SCHEMA = 2

DURABLE = (
    RunStartedLine,
    RunFinishedLine,
    RoundStartedLine,
    StartedAloneLine,
    RoundEndedLine,
    GpuLeftOutLine,
    DnnDoneLine,
    DnnPrunedLine,
    DnnFailedLine,
    DnnRetriedLine,
)
"""Lines that must survive the loss of the node, because the next start depends on them."""


_LINE_OF_END: Mapping[DnnState, type[DnnDoneLine | DnnPrunedLine]] = {
    DnnState.DONE: DnnDoneLine,
    DnnState.PRUNED: DnnPrunedLine,
}


class RunLedger:
    """Appends lines; knows which lines must be durable, and which DNNs have been reported as done or pruned.

    Args:
        ledger: the run's ledger.
        path_of_plan: path of plan.json.
        plans: plans of the rounds of earlier starts, in order.
    """

    def __init__(self, ledger: Ledger, path_of_plan: Path, plans: Iterable[PlanFacts]) -> None:
        self._ledger = ledger
        self._path_of_plan = path_of_plan
        self._plans = list(plans)
        self._ended: set[str] = set()

    def append(self, line: Line) -> None:
        """Write one line; the plan of a new round is also added to plan.json."""
        self._ledger.append(line, durable=isinstance(line, DURABLE))
        if isinstance(line, RoundStartedLine | StartedAloneLine):
            self._plans.append(line.plan)
            write_json_atomic(self._path_of_plan, {"schema": PLAN_SCHEMA, "rounds": self._plans})

    def check(self) -> None:
        """Check that the ledger is still the file under its name; see `Ledger.check`."""
        self._ledger.check()

    def append_start(self, opened: OpenedRun, cluster: Cluster, num_ranks: int, device: str) -> None:
        """Write the first lines of a start.

        Args:
            device: the device that the trainers compute on.
        """
        self.append(
            RunStartedLine(
                kind="ensemble",
                name=opened.config.name,
                resumed=opened.claim.resumed,
                nodes=tuple(NodeFacts(node.host, node.num_gpus) for node in cluster.nodes),
                num_ranks=num_ranks,
                device=device,
                seed=opened.config.seed,
                paradigm=opened.config.schedule.paradigm,
                regroup=opened.config.balance.regroup,
                versions=environment_versions(),
            )
        )
        for dnn_id in opened.earlier.retried:
            self.append(DnnRetriedLine(dnn_id))
        for warning in opened.earlier.warnings:
            self.append(CheckpointDamagedLine(warning))
        for dnn_id in opened.earlier.other_best:
            saved = opened.earlier.saved[dnn_id]
            value = saved.value if math.isfinite(saved.value) else None
            self.append(BestKeptLine(dnn_id, saved.best, saved.metric, value, 0.0, 0.0))

    def append_ended(self, ensemble: Ensemble) -> None:
        """Write a line for each DNN that has become done, or was pruned, since the last call."""
        for dnn_id, dnn in ensemble.state.dnns.items():
            if dnn.state in _LINE_OF_END and dnn_id not in self._ended:
                self._ended.add(dnn_id)
                self.append(_LINE_OF_END[dnn.state](dnn_id, dnn.detail))
