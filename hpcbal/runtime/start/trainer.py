"""Start a trainer rank: its backend and its gradient collective."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from mpi4py import MPI

from hpcbal.cluster.cgroup import Cores
from hpcbal.cluster.devices import granted_gpus
from hpcbal.cluster.roles import Roles
from hpcbal.comm.collectives import patient_allgather
from hpcbal.config import EnsembleConfig
from hpcbal.config.balance import balances_of
from hpcbal.env import compiler_settings
from hpcbal.runtime.group.replicas import check_model
from hpcbal.runtime.partitions.loading import PartLoader
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.roles.mpi_wave import MpiWave
from hpcbal.runtime.roles.trainer import Trainer
from hpcbal.runtime.start.model_check import ModelCheck
from hpcbal.runtime.start.recipe import Prepared, Recipe, collective_of
from hpcbal.telemetry import RunDirectory
from hpcbal.training.backend import Backend
from hpcbal.training.collectives import check_distributed, fault_for, open_groups
from hpcbal.training.devices import LocalSlots
from hpcbal.training.emulated_backend import EmulatedBackend
from hpcbal.training.frameworks import NativeBackend, import_framework, needs_of, with_models_to_come


def emulated_backend(
    config: EnsembleConfig, roles: Roles, slot: int, *, is_sized: bool = False
) -> EmulatedBackend:
    """Make the backend of the trainer on this slot.

    Args:
        slot: number of the slot; `backend.workers` are assigned in turn.
        is_sized: whether samples differ in size, so that the shares of a step differ in number.
    """
    workers = config.backend.workers
    return EmulatedBackend(
        config.backend.rates,
        roles.cluster.max_slots_per_node,
        config.backend.precision,
        workers[slot % len(workers)] if workers else None,
        by_share=[
            name for name, own in balances_of(config).items() if is_sized or not own.policy.splits_evenly
        ],
    )


log = logging.getLogger(__name__)


class TrainerRecipe(Recipe):
    """Loads the backend and runs a trainer; the peers are all trainers, and peer j trains on slot j."""

    @staticmethod
    def load_libraries(config: EnsembleConfig) -> None:
        """Load the frameworks of the DNNs, which takes seconds."""
        if config.backend.is_emulated:
            return
        for framework, who in needs_of(with_models_to_come(config), config.backend).items():
            with contextlib.suppress(Exception):  # `make_backend` imports it again and reports the error
                import_framework(framework, who)

    def prepare(self) -> Prepared:
        """Load the backend and what sums gradients.

        For errors see `make_backend`, `check_distributed` and `fault_for`.
        """
        backend = self._backend = make_backend(
            self.setting.context, self.setting.peers, is_sized=self.setting.data.facts.spec.is_sized
        )
        config = self.setting.context.config
        wanted = config.backend.effective_collective
        needs = {} if config.backend.is_emulated else needs_of(with_models_to_come(config), config.backend)
        check_distributed(wanted, backend.distributed, has_torch="torch" in needs)
        if wanted == "auto" and "tensorflow" not in needs:
            fault: str | None = "no network is of TensorFlow, for which Horovod is built"
        else:
            fault = fault_for(wanted, self.setting.peers.size)
        return Prepared(backend.device, fault, backend.distributed)

    def check(self) -> None:
        """Refuse a run whose models are wrong; collective over the trainers."""
        setting, peers = self.setting, self.setting.peers
        context = setting.context
        part = ModelCheck(
            partial(check_model, context, setting.data.facts, self._backend),
            peers.rank,
            peers.size,
            partial(patient_allgather, peers),
            RunDirectory(context.output).rank_log(context.rank),
        )
        part.run(context.config.dnns, setting.unfinished, setting.joined)

    def build(self, prepared: Sequence[Prepared | None]) -> None:
        context, data, trainers = self.setting.context, self.setting.data, self.setting.peers
        chosen = collective_of(context.config, prepared)
        log.info("%s", chosen)
        # Both threads call MPI: the fetching thread to read the ring, the main thread for everything else.
        threads_allowed = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._role = Trainer(
            context,
            data,
            self._backend,
            open_groups(chosen, trainers),
            make_wave=lambda slots: MpiWave.of(trainers, slots),
            fetcher=ThreadPoolExecutor(1, "batch-fetcher") if threads_allowed else None,
            loader=PartLoader(context, data.facts) if context.config.data.access == "partitioned" else None,
        )
        self._role.open_data()

    def play(self) -> int:
        try:
            return self._role.run()
        finally:
            self._backend.close()


RECIPE = TrainerRecipe


def make_backend(context: RankContext, trainers: MPI.Intracomm, *, is_sized: bool) -> Backend:
    """Make the backend of a trainer rank; collective over the trainers, but a failure of one blocks none.

    Raises:
        InputError: if the framework of a DNN cannot be imported.
        ClusterError: if two trainers would use one GPU, or a framework sees none of those that were given.
    """
    cores_of_trainer = patient_allgather(trainers, Cores.of_this_process())
    config, roles = context.config, context.roles
    if config.backend.is_emulated:
        return emulated_backend(config, roles, trainers.rank, is_sized=is_sized)
    node_of_slot = roles.cluster.node_of_slots()
    my_node = roles.ranks[context.rank].node
    cores = tuple(cores for slot, cores in enumerate(cores_of_trainer) if node_of_slot[slot] == my_node)
    if any(dnn.compile for dnn in config.dnns):
        os.environ.update(compiler_settings(str(RunDirectory(context.output).compiled.absolute())))
    slots = LocalSlots(
        roles.local_slot(context.rank),
        cores,
        config.slots.device,
        granted_gpus(os.environ),
        roles.seen_by_slots(my_node),
        roles.ranks[context.rank].host,
        roles.slots_per_gpu,
    )
    return NativeBackend(config.backend, with_models_to_come(config), slots)
