"""The machines that a forecast is for: links and speeds of servers and workers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcbal.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Links:
    """What a machine's link carries in each direction, and how fast it computes.

    Attributes:
        down_bytes_per_s: of parameters, from servers to workers, > 0; may be infinite for a worker.
        up_bytes_per_s: of updates, from workers to servers; the same range.
        slowness: its computations take this many times as long as recorded, > 0 and finite.
    """

    down_bytes_per_s: float
    up_bytes_per_s: float
    slowness: float = 1.0

    def __post_init__(self) -> None:
        if not (self.down_bytes_per_s > 0 and self.up_bytes_per_s > 0 and 0 < self.slowness < math.inf):
            raise PolicyError(
                f"bandwidths {self.down_bytes_per_s} and {self.up_bytes_per_s}, slowness {self.slowness}: "
                "all must be above 0, and the slowness finite"
            )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Workers and servers, alike or not.

    Raises:
        PolicyError: no workers or servers, or a server's link without a limit.
    """

    workers: tuple[Links, ...]
    servers: tuple[Links, ...]

    def __post_init__(self) -> None:
        if not self.workers or not self.servers:
            raise PolicyError(
                f"{len(self.workers)} workers and {len(self.servers)} servers: at least one of each is needed"
            )
        if any(math.isinf(s.down_bytes_per_s) or math.isinf(s.up_bytes_per_s) for s in self.servers):
            raise PolicyError("a server's bandwidth must be finite")


def like_machines(num_workers: int, num_servers: int, bytes_per_s: float) -> Cluster:
    """Workers and servers with the same links in both directions, as fast as the recorded ones."""
    link = Links(bytes_per_s, bytes_per_s)
    return Cluster((link,) * num_workers, (link,) * num_servers)
