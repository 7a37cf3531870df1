"""Open the dataset, the ring and the cache on the ranks that need them, and share facts about the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from mpi4py import MPI

from hpcbal.cluster.roles import Roles
from hpcbal.comm.channel import Channel
from hpcbal.comm.collectives import all_or_none, patient_allgather
from hpcbal.comm.group_comm import PieceExchange
from hpcbal.comm.mpi import MpiPieces
from hpcbal.config import EnsembleConfig
from hpcbal.config.schema.ensemble import AUTO
from hpcbal.control.paradigms import PARADIGMS
from hpcbal.data.augmentation import check_augmentations
from hpcbal.data.content import shortened
from hpcbal.data.dataset import is_encoded
from hpcbal.data.datasets import keeps_index
from hpcbal.data.first_samples import check_first
from hpcbal.data.source import PreprocessedSamples, open_source
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed
from hpcbal.dataplane.neighbours import CacheWithNeighbours, Homes
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import ClusterError
from hpcbal.runtime.rank.data import Before, RankData, StreamFacts


def open_data(
    world: MPI.Intracomm,
    node_comm: MPI.Intracomm,
    config: EnsembleConfig,
    roles: Roles,
    channel: Channel,
    before: Before,
    meanwhile: Callable[[], None],
) -> RankData:
    """Open the data of every rank; collective.

    Preprocessors open the dataset; trainers that make their own batches do so later, see
    `RankData.own_source`. If the dataset keeps an index, one rank opens it before the others, so that they
    find the index.

    Args:
        channel: carries what ranks of different nodes ask each other's caches for.
        before: what is known of the run. DNNs that have joined it fail alone if their operations do not work.
        meanwhile: called on ranks that do not open it, while the others do.

    Raises:
        ReportedError: on all ranks, if a rank cannot open the dataset, a user's operations do not work, the
            nodes see different data, or a node has too little memory for the ring or the cache.
    """
    makers = set(roles.preprocessor_ranks)
    source: PreprocessedSamples | None = None
    need: CacheNeed | None = None
    misfits: dict[str, str] = {}
    first = {min(makers)} if _keeps_index(config) else makers  # it makes the index, and the others read it

    def open_mine(turn: set[int]) -> None:
        nonlocal source, need, misfits
        if world.rank in turn:
            source = open_source(config)
            check_first(source)
            misfits = check_augmentations(config.dnns, source, config.seed, before.joined)
            is_first = world.rank == min(makers)  # one is enough: it may read some samples
            need = CacheNeed.of(source) if is_first and _may_keep(config, source) else None
        elif world.rank not in makers and turn is first:
            meanwhile()

    for turn in filter(None, (first, makers - first)):
        all_or_none(world, partial(open_mine, turn))
    mine = all_or_none(world, lambda: None if source is None else StreamFacts.of(config, source, before))
    everyone = patient_allgather(world, (mine, need, misfits))
    known = [facts for facts, *_ in everyone if facts is not None]
    need, misfits = next(found for facts, *found in everyone if facts is not None)
    different = [facts for facts in known if facts.as_found != known[0].as_found]

    def check() -> None:
        if different:
            one, other = shortened([known[0].as_found, different[0].as_found])
            raise ClusterError(
                f"data.dataset {config.data.dataset} is not the same on all nodes: fingerprints "
                f"{one} and {other}; put it where all nodes can read it"
            )

    all_or_none(world, check)
    ring = all_or_none(world, lambda: _make_ring(node_comm, known[0].spec, roles, world.rank))
    own = all_or_none(world, lambda: _make_cache(node_comm, config, need, ring, roles, world.rank))
    sizes = patient_allgather(world, 0 if own is None else own.num_bytes)
    bytes_of_node = [sizes[gateway] for gateway in roles.gateway_of_node]
    hit_rate = 0.0 if need is None else need.hit_rate(*bytes_of_node)
    cache: SampleCache | CacheWithNeighbours | None = own
    if need is not None and sum(map(bool, bytes_of_node)) > 1:
        comm = cast("MPI.Intracomm", world.Split(0 if own is not None else MPI.UNDEFINED, world.rank))
        if own is not None:
            holders = [rank for rank, num_bytes in enumerate(sizes) if num_bytes]
            cache = _join(own, need, bytes_of_node, roles, holders, MpiPieces(comm), channel)
    if source is not None:
        source.cache = cache
    warning = None if need is None else need.too_small(config.dataplane.cache_bytes)
    return RankData(known[0], ring, source, cache, hit_rate, warning or "", misfits)


def _join(
    own: SampleCache,
    need: CacheNeed,
    bytes_of_node: Sequence[int],
    roles: Roles,
    makers: Sequence[int],
    pieces: PieceExchange,
    channel: Channel,
) -> CacheWithNeighbours:
    """Join the cache of this node with those of the others."""
    # Where samples differ in size, caches may grow beyond what they are expected to need.
    most, node = need.whole_bytes(1), roles.ranks[channel.rank].node
    homes = Homes([min(most, num_bytes) for num_bytes in bytes_of_node])
    num_writers = sum(roles.ranks[rank].node == node for rank in makers)
    num_home = math.ceil(homes.share_of(node) * need.num_samples)
    own.reserve(lambda sample_id: homes.of(sample_id) == node, num_home, num_writers)
    servers = roles.preprocessors_asked_by(channel.rank)
    return CacheWithNeighbours(own, homes, node, servers, makers, pieces, channel.send)


def _keeps_index(config: EnsembleConfig) -> bool:
    held_out = config.data.validation
    paths = [config.data.dataset, *([] if held_out is None else [held_out.path_beside(config.data)])]
    return any(map(keeps_index, paths))


def _may_keep(config: EnsembleConfig, source: PreprocessedSamples) -> bool:
    """Whether samples are to be kept: with `auto`, if they have to be decoded."""
    if config.data.access != "shared":
        return False
    wanted = config.dataplane.cache_bytes
    return wanted != 0 if wanted != AUTO else is_encoded(source.dataset.sample_spec)


def _make_cache(
    node_comm: MPI.Intracomm,
    config: EnsembleConfig,
    need: CacheNeed | None,
    ring: NodeRing,
    roles: Roles,
    rank: int,
) -> SampleCache | None:
    """Make the cache of a node, for its preprocessors, and for its trainers if they may make batches."""
    makes = rank in roles.preprocessor_ranks
    if config.schedule.paradigm not in PARADIGMS:
        makes |= rank in roles.trainer_ranks
    comm = cast("MPI.Intracomm", node_comm.Split(0 if makes else MPI.UNDEFINED, rank))
    if not makes:
        return None
    try:
        if need is None:
            return None
        return SampleCache.create(comm, need, config.dataplane.cache_bytes, ring.num_bytes)
    finally:
        comm.Free()  # the window keeps what it needs of it


def _make_ring(node_comm: MPI.Intracomm, spec: StreamSpec, roles: Roles, rank: int) -> NodeRing:
    node = roles.ranks[rank].node
    return NodeRing.create(
        node_comm,
        spec,
        num_readers=roles.cluster.nodes[node].num_slots,
        num_producers=roles.num_local_producers(node),
    )
