"""The dataset and the ring: opened by who needs them, their shape known to all ranks."""

from __future__ import annotations

from dataclasses import dataclass

from mpi4py import MPI

from hpcbal.cluster.roles import Roles
from hpcbal.comm.all_or_none import all_or_none
from hpcbal.comm.collectives import patient_allgather
from hpcbal.config import EnsembleConfig
from hpcbal.control import INDEPENDENT
from hpcbal.data.source import SampleSource, open_source
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import ClusterError


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the first rank with the dataset tells the others of the data."""

    spec: StreamSpec
    num_classes: int
    fingerprint: str


def open_data(
    world: MPI.Intracomm, config: EnsembleConfig, roles: Roles
) -> tuple[SampleSource | None, StreamFacts]:
    """Open the dataset where samples are made; all ranks learn the shape of the stream; collective.

    That is on the preprocessors, and on the trainers where each of them has a stream of its own.
    """
    makers = set(roles.preprocessor_ranks)
    if config.schedule.paradigm == INDEPENDENT:
        makers |= set(roles.trainer_ranks)
    source = all_or_none(world, lambda: open_source(config) if world.rank in makers else None)
    mine = all_or_none(world, lambda: None if source is None else _facts_of(config, source))
    everyone = patient_allgather(world, mine)
    known = [facts for facts in everyone if facts is not None]
    different = [facts for facts in known if facts.fingerprint != known[0].fingerprint]

    def check() -> None:
        if different:
            raise ClusterError(
                f"data.dataset {config.data.dataset} is not the same on all nodes: fingerprints "
                f"{known[0].fingerprint} and {different[0].fingerprint}; put it where all nodes see it"
            )

    all_or_none(world, check)
    return source, known[0]


def _facts_of(config: EnsembleConfig, source: SampleSource) -> StreamFacts:
    spec = StreamSpec.of_source(source, config.dataplane)
    return StreamFacts(spec, source.num_classes, source.fingerprint)


def make_ring(node_comm: MPI.Intracomm, spec: StreamSpec, roles: Roles, rank: int) -> NodeRing:
    node = roles.ranks[rank].node
    return NodeRing.create(
        node_comm,
        spec,
        num_readers=roles.cluster.nodes[node].num_gpus,
        num_producers=roles.num_local_producers(node),
        num_writers=len(roles.preprocessor_ranks),
    )
