"""Start a trainer rank: its backend and its gradient collective."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from mpi4py import MPI

from hpcbal.comm.collectives import patient_allgather
from hpcbal.config import EnsembleConfig
from hpcbal.errors import InputError
from hpcbal.runtime.group.replicas import check_model
from hpcbal.runtime.partitions.loading import PartLoader
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.roles.mpi_wave import MpiWave
from hpcbal.runtime.roles.trainer import Trainer
from hpcbal.runtime.start.backends import LocalSlots, load_backend
from hpcbal.runtime.start.model_check import ModelCheck
from hpcbal.runtime.start.recipe import Recipe
from hpcbal.telemetry import RunDirectory
from hpcbal.training.backend import Backend
from hpcbal.training.collectives import COLLECTIVES


class TrainerRecipe(Recipe):
    """Loads the backend and runs a trainer; the peers are all trainers, and peer j trains on slot j."""

    @staticmethod
    def load_libraries(config: EnsembleConfig) -> None:
        """Load TensorFlow if it is the backend, which takes seconds."""
        if config.backend.name == "tensorflow":
            with contextlib.suppress(Exception):  # `make_backend` imports it again and reports the error
                importlib.import_module("hpcbal.training.keras.tensorflow_backend")

    def prepare(self) -> str:
        """Load the backend; for errors see `make_backend` and `check_collective`."""
        self._backend = make_backend(
            self.setting.context, self.setting.peers, is_sized=self.setting.data.facts.spec.is_sized
        )
        check_collective(self.setting.context.config)
        return self._backend.device

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
        part.run(context.config.dnns, setting.unfinished)

    def build(self, devices: Sequence[str | None]) -> None:
        context, data, trainers = self.setting.context, self.setting.data, self.setting.peers
        # Both threads call MPI: the fetching thread to read the ring, the main thread for everything else.
        threads_allowed = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._role = Trainer(
            context,
            data,
            self._backend,
            COLLECTIVES[context.config.backend.effective_collective](trainers),
            make_wave=lambda slots: MpiWave.of(trainers, slots),
            fetcher=ThreadPoolExecutor(1, "batch-fetcher") if threads_allowed else None,
            loader=PartLoader(context, data.facts) if context.config.data.access == "partitioned" else None,
        )

    def play(self) -> int:
        try:
            return self._role.run()
        finally:
            self._backend.close()


RECIPE = TrainerRecipe


def make_backend(context: RankContext, trainers: MPI.Intracomm, *, is_sized: bool) -> Backend:
    """Make the backend of a trainer rank; collective over the trainers, but a failure of one blocks none.

    Raises:
        InputError: if the config asks for TensorFlow, but it cannot be imported.
        ClusterError: if a node has more trainers than GPUs, or TensorFlow sees none of those that were given.
    """
    cores_of_trainer = patient_allgather(trainers, frozenset(os.sched_getaffinity(0)))
    config, roles = context.config, context.roles
    if config.backend.name == "emulated":
        from hpcbal.runtime.start.emulated import emulated_backend

        return emulated_backend(config, roles, trainers.rank, is_sized=is_sized)
    node_of_slot = roles.cluster.node_of_slots()
    my_node = roles.ranks[context.rank].node
    cores = tuple(cores for slot, cores in enumerate(cores_of_trainer) if node_of_slot[slot] == my_node)
    return load_backend(config, LocalSlots(roles.local_slot(context.rank), cores))


def check_collective(config: EnsembleConfig) -> None:
    """Import the gradient collective, before all trainers start it together.

    Raises:
        InputError: if it cannot be imported.
    """
    if config.backend.effective_collective != "horovod":
        return
    try:
        import hpcbal.training.horovod_collective  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"backend.collective is horovod, but Horovod cannot be imported here ({error}); install it (see "
            "docs/troubleshooting.md), or set backend.collective to mpi"
        ) from error
