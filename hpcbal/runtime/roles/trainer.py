"""A trainer rank: idle until groups are formed, then a member of one of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING

from hpcbal.checkpoint.background import BackgroundWriter
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.group_comm import AloneComm, GroupComm
from hpcbal.config import DnnConfig
from hpcbal.data.source import PreprocessedSamples
from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.reader import StreamReader
from hpcbal.events.ensemble import WITHOUT_ROUNDS, GroupPlan, RoundPlan
from hpcbal.events.history import Position
from hpcbal.runtime.balance.balancer import Balancer, EvenSplit, make_balancer, make_watch
from hpcbal.runtime.balance.decided_split import SplitMemory
from hpcbal.runtime.balance.gpu import DeviceUse
from hpcbal.runtime.balance.speed_learning import KeptModel
from hpcbal.runtime.group.feeding import result_of
from hpcbal.runtime.group.member import GroupMember
from hpcbal.runtime.group.replicas import ReplicaCache
from hpcbal.runtime.handoff.submissions import append_import_roots
from hpcbal.runtime.health.silence import ReadWatch
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import RankData
from hpcbal.runtime.roles.group_profile import GroupProfile, Wave
from hpcbal.runtime.roles.group_round import GroupRound
from hpcbal.runtime.wire.protocol import FormGroup, Joined, OpenData, OpenGroups, ReaderReady, Shutdown
from hpcbal.training.backend import Backend, GradientCollective, LocalCollective
from hpcbal.training.devices import is_gpu
from hpcbal.training.groups import TrainerGroups

if TYPE_CHECKING:
    from hpcbal.runtime.partitions.loading import PartLoader

log = logging.getLogger(__name__)


class Trainer:
    """Obeys OpenGroups, FormGroup, OpenData and Shutdown.

    Args:
        data: this rank's data; the rank opens the dataset once there are no rounds.
        backend: builds replicas.
        groups: forms the groups' gradient collectives; every trainer takes part, in the same order.
        make_wave: makes the profiling wave of some slots; called by the trainers of these slots only.
        fetcher: one thread that opens the dataset and fetches batches ahead; None: the trainer's own thread
            does so when a batch is needed.
        loader: loads this rank's part of partitioned data; None if data is streamed.
    """

    def __init__(
        self,
        context: RankContext,
        data: RankData,
        backend: Backend,
        groups: TrainerGroups,
        make_wave: Callable[[Sequence[int]], Wave],
        fetcher: Executor | None,
        loader: PartLoader | None = None,
    ) -> None:
        self._context = context
        self._data = data
        self._slot = context.roles.trainer_ranks.index(context.rank)
        self._backend = backend
        self._groups = groups
        self._make_wave = make_wave
        self._fetcher = fetcher
        self._loader = loader
        self._opening: Future[PreprocessedSamples] | None = None
        self._maker: BatchMaker | None = None
        self._cache = ReplicaCache()
        self._split_memories: dict[str, SplitMemory] = {}
        local_slot = context.roles.local_slot(context.rank)
        gpu = context.roles.gpu_of(context.rank) if is_gpu(backend.device) else None
        self._watch = make_watch(context.config, None if gpu is None else gpu[1])
        self._device = DeviceUse(None if gpu is None else gpu[1])
        self._reader = StreamReader(data.ring, local_slot)
        self._dnns: dict[str, DnnConfig] = {dnn.name: dnn for dnn in context.config.dnns}
        self._writer = BackgroundWriter()

    def run(self) -> int:
        """Work until Shutdown; returns the exit code that it carries."""
        context = self._context
        while True:
            _, message = context.channel.wait(self._idle)
            if isinstance(message, Shutdown):
                self._writer.close()
                if self._fetcher is not None:
                    self._fetcher.shutdown()
                self._groups.shutdown()
                self._cache.clear()
                if self._data.neighbours is not None:
                    self._data.neighbours.end(lambda: None)
                return message.exit_code
            if isinstance(message, OpenGroups | FormGroup):
                self._learn(message.joined)
            if isinstance(message, OpenGroups):
                self._take_part(message)
            elif isinstance(message, FormGroup):
                self._form_group(message)
            elif isinstance(message, OpenData):
                self._begin_to_open()
            else:
                log.debug("dropped %r: its groups have ended", message)

    def open_data(self) -> None:
        """Open the dataset at the start of a run that has no rounds.

        Raises:
            HpcbalError: see `RankData.own_source`.
        """
        if self._context.config.schedule.paradigm in WITHOUT_ROUNDS:
            self._begin_to_open().result()

    def _begin_to_open(self) -> Future[PreprocessedSamples]:
        """Open the dataset in the thread that will read it: users' handles may work in one thread only."""
        if self._opening is None:
            open_it = partial(self._data.own_source, self._context.config)
            if self._fetcher is not None:
                self._opening = self._fetcher.submit(open_it)
            else:
                self._context.announce("opening the data")
                self._opening = Future()
                self._opening.set_result(open_it())
        return self._opening

    def _idle(self) -> None:
        if self._opening is not None and self._opening.done():
            self._opening.result()  # raises what went wrong
        self._context.keep_in_touch("idle")

    def _learn(self, joined: Sequence[Joined]) -> None:
        """Take in DNNs that this rank's configuration lacks."""
        for each in joined:
            if each.dnn.name not in self._dnns:
                append_import_roots(each.import_roots)
                self._dnns[each.dnn.name] = each.dnn
                self._backend.learn(each.dnn, each.rates)

    def _take_part(self, order: OpenGroups) -> None:
        """Form the groups with all other trainers, then do this rank's work in its group."""
        mine = next((plan for plan in order.groups if self._slot in plan.slots), None)
        if mine is not None and (order.round_plan is None or self._loader is None):
            plan = order.round_plan
            self._reader.begin(order.stream, plan.start[mine.dnn_id] if plan else Position(0))
        self._context.channel.send(SCHEDULER_RANK, ReaderReady(order.serial))
        self._groups.open([plan.slots for plan in order.groups])
        if mine is None:
            return
        self._context.announce(f"{'training' if order.round_plan else 'profiling'} {mine.dnn_id}")
        member = self._member(mine, self._groups.comm_of(mine.slots), self._groups.collective_of(mine.slots))
        if order.round_plan is None:
            self._reader.set_poll(lambda: self._context.keep_in_touch(f"waiting for data of {mine.dnn_id}"))
            slots = sorted(slot for plan in order.groups for slot in plan.slots)
            GroupProfile(member, self._reader, order.serial, self._make_wave(slots)).run()
        else:
            self._run(member, self._reader, order.round_plan, order.serial, self._balancer(mine, member))

    def _form_group(self, order: FormGroup) -> None:
        """Train one DNN with the other ranks of its group, in batches that they make themselves."""
        (mine,) = order.round_plan.groups
        if len(mine.slots) == 1:
            member = self._member(mine, AloneComm(), LocalCollective())
            self._run(member, self._own_maker(mine), order.round_plan, order.serial, EvenSplit(1))
            return
        self._groups.open_one(mine.slots)  # first: whoever waits in it gives no sign of life
        comm, collective = self._groups.comm_of(mine.slots), self._groups.collective_of(mine.slots)
        member = self._member(mine, comm, collective)
        try:
            maker = self._own_maker(mine)
            self._run(member, maker, order.round_plan, order.serial, self._balancer(mine, member))
        finally:
            self._groups.close_one(mine.slots)

    def _member(self, mine: GroupPlan, comm: GroupComm, collective: GradientCollective) -> GroupMember:
        return GroupMember(
            self._context,
            self._data.facts,
            self._backend,
            self._cache,
            self._dnns[mine.dnn_id],
            comm,
            collective,
            [self._context.roles.trainer_ranks[slot] for slot in mine.slots],
        )

    def _run(
        self,
        member: GroupMember,
        feed: StreamReader | BatchMaker,
        plan: RoundPlan,
        serial: int,
        balancer: Balancer,
    ) -> None:
        writer, fetcher, loader, device = self._writer, self._fetcher, self._loader, self._device
        GroupRound(member, feed, plan, serial, writer, fetcher, balancer, loader, device).run()

    def _balancer(self, mine: GroupPlan, member: GroupMember) -> Balancer:
        return make_balancer(
            self._context.config.balance,
            member.dnn,
            self._data.facts.spec.num_train,
            member.collective,
            self._split_memories,
            key=f"{mine.dnn_id} on {mine.slots}",
            kept=self._kept_model(mine),
            watch=self._watch,
            deals_work=self._data.facts.spec.is_sized,
        )

    def _kept_model(self, group: GroupPlan) -> KeptModel:
        cluster = self._context.roles.cluster
        node_of_slot = cluster.node_of_slots()
        workers = [f"{cluster.nodes[node_of_slot[slot]].host} {slot}" for slot in group.slots]
        return KeptModel(self._context.dnn_directory(group.dnn_id), workers)

    def _own_maker(self, group: GroupPlan) -> BatchMaker:
        """Return the maker of this rank's batches; however long that takes, the rank shows that it lives."""
        context = self._context
        if self._maker is None:
            doing = f"opening the data for {group.dnn_id}"
            context.announce(doing)
            source = result_of(self._begin_to_open(), lambda: context.keep_in_touch(doing))
            context.reads = ReadWatch(source, context.heartbeat_interval_s)
            self._maker = BatchMaker(self._data.facts.spec, source)
        context.announce(f"training {group.dnn_id}")
        return self._maker
