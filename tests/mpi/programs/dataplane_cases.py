"""The cases of the shared stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cases import Case, try_cases
from dataplane_harness import Nodes
from dataplane_limits import LIMITS, NODES, try_limit
from dataplane_restarts import restart
from dataplane_stream import Settings, stream

STREAMS = {
    "1x1": Settings([(1, 1)]),
    "speeds": Settings([(1, 4)], steps=(1, 7, 8, 13, 24), delays_s=(0, 0.004, 0)),
    "three producers": Settings([(3, 2)], steps=(16, 5), bad_every=5),
    "ragged": Settings([(2, 2)], shape=(None, 3), bad_every=4, steps=(10,)),
    "three nodes": Settings([(1, 1), (1, 1), (1, 1)], steps=(9, 17), delays_s=(0, 0.003, 0)),
    "ragged nodes": Settings([(1, 2), (2, 1), (1, 0)], shape=(None, 3), bad_every=5),
    "large messages": Settings([(2, 1), (1, 2)], shape=(40, 200), slots=2, steps=(3,)),
    "inside a pass": Settings([(2, 1), (1, 1)], first_pass=2, offsets=(5, 48, 60, 61), passes=2),
    "beside other work": Settings([(2, 2), (1, 1)], bad_every=9, steps=(7,)),
}
RESTARTS: dict[str, tuple[Nodes, tuple[int | None, ...]]] = {
    "three nodes": ([(1, 1), (2, 1), (1, 1)], (5, 3)),
    "one node trains": ([(2, 2), (2, 0)], (None, 300)),
    "large messages": ([(2, 2), (1, 1)], (64, 300)),
}


def cases() -> Iterator[tuple[str, int, Case]]:
    for name, settings in STREAMS.items():
        yield f"stream {name}", num_ranks(settings.nodes), partial(stream, settings=settings)
    for limit in LIMITS:
        yield f"limits {limit.__name__}", num_ranks(NODES), partial(try_limit, limit=limit)
    for name, (nodes, shape) in RESTARTS.items():
        yield f"restarts {name}", num_ranks(nodes), partial(restart, nodes=nodes, shape=shape)


def num_ranks(nodes: Nodes) -> int:
    return sum(map(sum, nodes))


if __name__ == "__main__":
    try_cases(cases())
