"""Start a trainer rank: its backend and its gradient collective.

The trainers build a few models and drop them. A run is refused if no DNN of a callable can be built: the
mistake is in the callable, and would otherwise be found when the round of its first DNN comes. If some can,
or one has ended, the others fail when they are built for training, as combinations of a search may; but if
no model at all can be built, the run is refused. A run is also refused if a DNN that has not begun, and has
`init` or `freeze`, cannot be built with them, and if a model differs from its checkpoint, so that the DNN can
go on once the old code is back.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcbal.cluster.cgroup import Cores
from hpcbal.cluster.devices import granted_gpus
from hpcbal.cluster.roles import Roles
from hpcbal.comm.backoff import Backoff
from hpcbal.comm.collectives import patient_allgather
from hpcbal.config import DnnConfig, EnsembleConfig
from hpcbal.config.balance import balances_of
from hpcbal.env import compiler_settings
from hpcbal.errors import InputError, UserCodeError
from hpcbal.processes import leave_if_forked
from hpcbal.runtime.group.replicas import check_model
from hpcbal.runtime.partitions.loading import PartLoader
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.roles.group_profile import Wave
from hpcbal.runtime.roles.trainer import Trainer
from hpcbal.runtime.start.recipe import Prepared, Recipe, collective_of
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.training.backend import Backend
from hpcbal.training.collectives import check_distributed, fault_for, open_groups
from hpcbal.training.devices import LocalSlots
from hpcbal.training.emulated_backend import EmulatedBackend
from hpcbal.training.frameworks import NativeBackend, import_framework, needs_of, with_models_to_come
from hpcbal.training.groups import detail_of

Check = Callable[[DnnConfig], None]
"""Builds the model of a DNN, and compares it with the DNN's checkpoint if there is one."""


class ModelCheck:
    """This trainer's part in the check; collective over all trainers.

    Args:
        check: raises an InputError if the model is wrong. Any other exception, such as a lack of memory,
            is left to the DNN's training.
        rank: index of this trainer.
        num_ranks: number of trainers.
        all_gather: collects one value from each trainer.
        log_file: log of this rank, which holds the tracebacks.
    """

    def __init__(
        self,
        check: Check,
        rank: int,
        num_ranks: int,
        all_gather: Callable[[Any], Sequence[Any]],
        log_file: Path,
    ) -> None:
        self._check = check
        self._rank = rank
        self._num_ranks = num_ranks
        self._all_gather = all_gather
        self._log_file = log_file

    def run(
        self, dnns: Sequence[DnnConfig], unfinished: Mapping[str, bool], joined: Collection[str] = ()
    ) -> None:
        """Check the models of `dnns` as far as needed.

        Args:
            dnns: all DNNs.
            unfinished: the DNNs that are still to be trained; by name, whether one has a checkpoint.
            joined: names of DNNs that have joined the run: those that have not begun are built when they
                train, and fail alone.

        Raises:
            InputError: on the first trainer, if the run must not start.
        """
        dnns = [dnn for dnn in dnns if dnn.name not in joined or unfinished.get(dnn.name, True)]
        live = [dnn for dnn in dnns if dnn.name in unfinished]
        begun = {dnn.model: dnn for dnn in reversed(live) if unfinished[dnn.name]}
        changed = [dnn for dnn in live if not unfinished[dnn.name] and (dnn.init or dnn.freeze)]
        single = [*begun.values(), *changed]  # of those that have begun one per callable
        if wrong := self._problems(single):
            self._refuse(wrong)
            return  # on the other trainers
        known = {dnn.model for dnn in single}
        by_callable: dict[str, list[DnnConfig]] = {}
        for dnn in live:
            if dnn.model not in known:
                by_callable.setdefault(dnn.model, []).append(dnn)
        problems = dict(self._problems([of_one[0] for of_one in by_callable.values()]))
        if doubtful := [of_one for of_one in by_callable.values() if of_one[0].name in problems]:
            problems.update(self._problems([dnn for of_one in doubtful for dnn in of_one[1:]]))
            hopeless = [of_one for of_one in doubtful if all(dnn.name in problems for dnn in of_one)]
            if known or len(hopeless) < len(by_callable):  # otherwise nothing at all can be trained
                ended = {dnn.model for dnn in dnns if dnn.name not in unfinished}
                hopeless = [of_one for of_one in hopeless if of_one[0].model not in ended]
            self._refuse([(dnn.name, problems[dnn.name]) for of_one in hopeless for dnn in of_one])

    def _problems(self, dnns: Sequence[DnnConfig]) -> list[tuple[str, str]]:
        """Check models, each on one trainer, and return on all trainers what is wrong with which DNN."""
        mine = dnns[self._rank :: self._num_ranks]
        found = self._all_gather([problem for dnn in mine if (problem := self._problem(dnn))])
        by_name = {name: text for problems in found for name, text in problems}
        return [(dnn.name, by_name[dnn.name]) for dnn in dnns if dnn.name in by_name]

    def _problem(self, dnn: DnnConfig) -> tuple[str, str] | None:
        """The DNN and what is wrong with its model, if anything."""
        try:
            self._check(dnn)
        except InputError as error:
            log.info("%s", detail_of(error))
            where = f" (traceback in {self._log_file})" if isinstance(error, UserCodeError) else ""
            return dnn.name, f"{error}{where}"
        except Exception as error:
            log.info("the model of %s was not checked: %s", dnn.name, detail_of(error))
        finally:
            leave_if_forked(f"the model of {dnn.name}")
        return None

    def _refuse(self, problems: Sequence[tuple[str, str]]) -> None:
        if problems and self._rank == 0:
            raise InputError(sentences(problems))


def sentences(problems: Sequence[tuple[str, str]]) -> str:
    """One line per kind of problem, with the number of further DNNs that have the same.

    Args:
        problems: name of a DNN and what is wrong with it; at least one.
    """
    names_by_text: dict[str, list[str]] = {}
    for name, text in problems:
        names_by_text.setdefault(text.removeprefix(f"DNN {name}: "), []).append(name)
    lines = []
    for text, names in names_by_text.items():
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        lines.append(f"DNN {names[0]}{more}: {text}")
    return "\n".join(lines)


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


WARM, TIMED = range(2)


class MpiWave(Wave):
    """A wave over MPI; each meeting is a non-blocking barrier.

    Trainers of a node share its memory bandwidth, its links and, without GPUs, its cores. A group that is
    timed while its neighbours still build their networks, or after they have left, seems faster than it will
    be in a round.

    Args:
        comm: communicator of the ranks of all groups of the wave; freed by `leave`.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._meetings: list[MPI.Request] = []

    @classmethod
    def of(cls, trainers: MPI.Intracomm, ranks: Sequence[int]) -> MpiWave:
        """Make the wave of these trainers; collective over them."""
        everyone = trainers.Get_group()
        mine = everyone.Incl(ranks)
        wave = cls(trainers.Create_group(mine))
        mine.Free()
        everyone.Free()
        return wave

    def all_warm(self) -> bool:
        return self._at(WARM)

    def all_timed(self) -> bool:
        return self._at(TIMED)

    def leave(self, poll: Callable[[], None]) -> None:
        backoff = Backoff()
        while not self.all_timed():
            poll()
            backoff.wait()
        self._comm.Free()

    def _at(self, meeting: int) -> bool:
        while len(self._meetings) <= meeting:
            self._meetings.append(self._comm.Ibarrier())
        return all(request.Test() for request in self._meetings[: meeting + 1])
