"""Estimate a planned ensemble's memory on a node, where it is known without building a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbal.cluster.layout import Cluster
from hpcbal.config import EnsembleConfig
from hpcbal.policies.placement import Placement

CHECKPOINT_NAME = "checkpoint.h5"


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Memory use of the fullest node, in bytes.

    Attributes:
        ring: most memory that the shared stream may use: what its blocks take, or dataplane.ring_bytes if
            the dataset was not opened.
        networks: weights and optimizer state of the DNNs that train there at the same time, one copy per slot
            (in GPU memory if there are GPUs); None: unknown. Activations are not counted.
        snapshots: copies that are being written as checkpoints during training; None: unknown.
        unknown: DNNs of unknown size, because they have no checkpoint yet.
        cache: the cache of decoded samples, if its size is given; 0 for `auto`, which takes a part of what is
            left.
    """

    ring: int
    networks: int | None
    snapshots: int | None
    unknown: tuple[str, ...]
    cache: int = 0

    @property
    def known(self) -> int:
        """Sum of all known parts."""
        return self.ring + self.cache + (self.networks or 0) + (self.snapshots or 0)

    def to_dict(self, bytes_per_node: int | None) -> dict[str, Any]:
        """Plain values for JSON; `fits` is None if the node's memory or the networks' size is unknown."""
        fits = None
        if bytes_per_node is not None and (self.known > bytes_per_node or not self.unknown):
            fits = self.known <= bytes_per_node
        return {
            "ring_bytes": self.ring,
            "cache_bytes": self.cache,
            "networks_bytes": self.networks,
            "snapshots_bytes": self.snapshots,
            "known_bytes": self.known,
            "unknown": list(self.unknown),
            "fits": fits,
        }


def node_memory(
    config: EnsembleConfig,
    placements: Sequence[Placement],
    cluster: Cluster,
    cache_bytes: int = 0,
    ring_bytes: int | None = None,
) -> NodeMemory:
    """Find the fullest node over all flotillas, each with a ring and a cache of this size.

    Sizes of DNNs are taken from the checkpoints in the output directory: weights and optimizer state.
    """
    ring = config.dataplane.ring_bytes if ring_bytes is None else ring_bytes
    sizes = _checkpoint_sizes(Path(config.output.dir), [dnn.name for dnn in config.dnns])
    unknown = tuple(name for name, size in sizes.items() if size is None)
    if unknown:
        return NodeMemory(ring, None, None, unknown, cache_bytes)
    known = {name: size for name, size in sizes.items() if size is not None}
    each = [_of_placement(placement.slots, known, cluster) for placement in placements]
    networks, snapshots = max(each, key=sum, default=(0, 0))
    return NodeMemory(ring, networks, snapshots, (), cache_bytes)


def _of_placement(
    slots: Mapping[str, Sequence[int]], sizes: Mapping[str, int], cluster: Cluster
) -> tuple[int, int]:
    """(networks, snapshots) on the fullest node of one flotilla."""
    node_of_slot = cluster.node_of_slots()
    networks, snapshots = [0] * len(cluster.nodes), [0] * len(cluster.nodes)
    for name, own in slots.items():
        for slot in own:
            networks[node_of_slot[slot]] += sizes[name]
        snapshots[node_of_slot[own[0]]] += sizes[name]  # the master writes it
    return max(zip(networks, snapshots, strict=True), key=sum)


def _checkpoint_sizes(output: Path, names: Sequence[str]) -> dict[str, int | None]:
    """Bytes of each DNN's checkpoint, None where there is none; most plans are made before the first run."""
    if not output.is_dir():
        return dict.fromkeys(names)
    from hpcbal.telemetry.files.run_directory import RunDirectory

    run = RunDirectory(output)
    return {name: _file_size(run.job(name) / CHECKPOINT_NAME) for name in names}


def _file_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
