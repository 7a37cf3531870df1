"""A hand-driven ensemble: the test decides what happens, one event after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.progress import ResumeState, ScheduleSettings
from hpcbal.events.ensemble import CheckpointWritten, Delta, EpochDone, Event, GroupLeft, Instruction, Started
from hpcbal.events.history import Position
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable

NUM_POSITIONS = 100


class Driver:
    """An `Ensemble` whose invariants are checked after every event.

    Args:
        max_epochs: max_epochs of each DNN, by name; or a whole stop rule.
        slots_per_node: slots of each node.
        rates: samples/s on 1, 2, ... slots by DNN; a missing DNN has no known rate. Default: 100 on each slot
            for all.
        host: name of the nodes, before their number.
        may_be_pruned: DNNs for which the pruning rule is; None: all.
        settings: fields of ScheduleSettings.
    """

    def __init__(
        self,
        max_epochs: Mapping[str, int | StopRule],
        slots_per_node: Sequence[int] = (4,),
        rates: Mapping[str, Sequence[float]] | None = None,
        resume: ResumeState | None = None,
        host: str = "host",
        batch_sizes: Mapping[str, int] | None = None,
        may_be_pruned: Collection[str] | None = None,
        **settings: Any,
    ) -> None:
        cluster = Cluster(tuple(Node(f"{host}{i}", n) for i, n in enumerate(slots_per_node)))
        specs = [
            DnnSpec(
                name,
                (batch_sizes or {}).get(name, 8),
                rule if isinstance(rule, StopRule) else StopRule(max_epochs=rule),
                may_be_pruned is None or name in may_be_pruned,
            )
            for name, rule in max_epochs.items()
        ]
        if rates is None:
            rates = {spec.dnn_id: [100.0 * m for m in range(1, cluster.num_slots + 1)] for spec in specs}
        table = RateTable(
            {name: dict(enumerate(row, start=1)) for name, row in rates.items()}, cluster.max_slots_per_node
        )
        settings = {"num_positions": NUM_POSITIONS, "delta": Delta(relative=0.1), "profile": False} | settings
        self.ensemble = Ensemble(specs, cluster, ScheduleSettings(**settings), table, resume)

    def send(self, event: Event) -> list[Instruction]:
        instructions = self.ensemble.handle(event)
        self.ensemble.check_invariants()
        return instructions

    def start(self) -> list[Instruction]:
        return self.send(Started())

    def epoch(
        self,
        *dnn_ids: str,
        val_accuracy: float = 0.5,
        offers: Mapping[str, int] | None = None,
        seconds: float = 1.0,
        start_s: float | None = None,
    ) -> list[Instruction]:
        """These DNNs finish their pass; returns the instructions after the last report.

        `offers` are slots by DNN that their groups would drop; `start_s` is how long they took to start.
        """
        instructions: list[Instruction] = []
        metrics = {"val_accuracy": val_accuracy}
        for dnn_id in dnn_ids:
            pass_index = self.ensemble.state.groups[dnn_id].training_pass
            assert pass_index is not None
            offered = (offers or {}).get(dnn_id)
            instructions = self.send(
                EpochDone(dnn_id, pass_index, metrics, seconds, offered_slot=offered, start_s=start_s)
            )
        return instructions

    def save(self, dnn_id: str, position: Position | None = None) -> list[Instruction]:
        """The checkpoint of all completed epochs is on disk."""
        dnn = self.ensemble.state.dnns[dnn_id]
        if position is None:
            position = Position(dnn.history[-1].pass_index, NUM_POSITIONS)
        return self.send(CheckpointWritten(dnn_id, dnn.epochs, position))

    def leave(self, *dnn_ids: str) -> list[Instruction]:
        """These groups write their last checkpoint and leave; returns the instructions after the last one."""
        instructions: list[Instruction] = []
        for dnn_id in dnn_ids:
            self.save(dnn_id)
            instructions = self.send(GroupLeft(dnn_id))
        return instructions

    def state_of(self, dnn_id: str) -> str:
        return str(self.ensemble.state.dnns[dnn_id].state)


@pytest.fixture
def drive() -> Callable[..., Driver]:
    """Makes a `Driver`."""
    return Driver
