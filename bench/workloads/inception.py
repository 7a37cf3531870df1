"""A synthetic trace with the operations of a training step of Inception-v3.

Layers and shapes are those of C. Szegedy et al. (CVPR 2016) with 1,000 classes. A step of TensorFlow's graph
of it has, for each of the 94 convolutions: convolution, batch normalisation and activation, four
operations of their gradients, and three for the weight decay of each variable. Its kernel and its offset come
from the server, and their gradients and two statistics go there. Every transfer is followed by its parsing
([ASGD] Sec. 3.2.1). [ASGD] does not say how many operations its graph has ("thousands").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcbal.forecast import Operation, Resource, Trace
from hpcbal.forecast.overhead import ParsingOverhead, separate_parsing

NUM_PARAMETERS = 23_817_352
"""Trainable numbers of the network, as published with its weights."""

COMPUTE_S = 0.55
"""Of a step with 128 images on the GPU that [ASGD] Sec. 4.5 uses, roughly."""

SAMPLES_PER_STEP = 128
PARSING = ParsingOverhead(1e-10, 5e-5)
DEVIATION = 0.05


@dataclass(frozen=True, slots=True)
class Convolution:
    """A layer: its block, the branch of the block, its kernel, and how wide its output is."""

    block: int
    branch: int
    height: int
    width: int
    channels: int
    filters: int
    size: int

    @property
    def num_weights(self) -> int:
        return self.height * self.width * self.channels * self.filters

    @property
    def work(self) -> int:
        """Multiplications for an image."""
        return self.num_weights * self.size * self.size


Chain = list[tuple[int, int, int]]
"""(height, width, filters) of the convolutions of a branch; filters below 0: as many, but the convolution
reads what the one before it has read, so that both lie side by side."""


def blocks() -> Iterator[tuple[int, int, list[Chain]]]:
    """(input channels, output size, branches) of each block."""
    yield 3, 147, [[(3, 3, 32), (3, 3, 32), (3, 3, 64)]]
    yield 64, 71, [[(1, 1, 80), (3, 3, 192)]]
    for channels, pooled in ((192, 32), (256, 64), (288, 64)):
        double = [(1, 1, 64), (3, 3, 96), (3, 3, 96)]
        yield channels, 35, [[(1, 1, 64)], [(1, 1, 48), (5, 5, 64)], double, [(1, 1, pooled)]]
    yield 288, 17, [[(3, 3, 384)], [(1, 1, 64), (3, 3, 96), (3, 3, 96)]]
    for inner in (128, 160, 160, 192):
        single = [(1, 1, inner), (1, 7, inner), (7, 1, 192)]
        double = [(1, 1, inner), (7, 1, inner), (1, 7, inner), (7, 1, inner), (1, 7, 192)]
        yield 768, 17, [[(1, 1, 192)], single, double, [(1, 1, 192)]]
    yield 768, 8, [[(1, 1, 192), (3, 3, 320)], [(1, 1, 192), (1, 7, 192), (7, 1, 192), (3, 3, 192)]]
    for channels in (1280, 2048):
        yield (
            channels,
            8,
            [
                [(1, 1, 320)],
                [(1, 1, 384), (1, 3, 384), (3, 1, -384)],
                [(1, 1, 448), (3, 3, 384), (1, 3, 384), (3, 1, -384)],
                [(1, 1, 192)],
            ],
        )


def convolutions() -> list[Convolution]:
    """All 94, in the order in which they run."""
    found = []
    for block, (block_channels, size, branches) in enumerate(blocks()):
        for branch, chain in enumerate(branches):
            channels = before = block_channels
            for height, width, filters in chain:
                inputs = before if filters < 0 else channels
                found.append(Convolution(block, branch, height, width, inputs, abs(filters), size))
                before, channels = inputs, abs(filters)
    return found


class _Graph:
    """Operations with the share of the step's computation that each takes."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.work: list[float] = []

    def add(
        self,
        name: str,
        resource: Resource,
        *waits_for: int,
        num_bytes: int = 0,
        variable: str = "",
        work: float = 0.0,
    ) -> int:
        self.operations.append(
            Operation(name, resource, tuple(sorted(set(waits_for))), num_bytes, 0, variable)
        )
        self.work.append(work)
        return len(self.operations) - 1


def inception_trace(num_steps: int = 100, seed: int = 0) -> Trace:
    """So many recorded steps of one worker, with parsing as operations of its own."""
    graph = _Graph()
    layers = convolutions()
    received = {
        (i, kind): graph.add(
            f"receive {kind}{i}",
            Resource.DOWNLINK,
            num_bytes=4 * size,
            variable=f"{kind}{i}",
        )
        for i, layer in enumerate(layers)
        for kind, size in (("kernel", layer.num_weights), ("offset", layer.filters))
    }
    for kind, size in (("kernel", 2048 * 1000), ("offset", 1000)):
        received[len(layers), kind] = graph.add(
            f"receive {kind}{len(layers)}",
            Resource.DOWNLINK,
            num_bytes=4 * size,
            variable=f"{kind}{len(layers)}",
        )
    _add_training(graph, layers, received)
    rng = np.random.default_rng(seed)
    work = np.array(graph.work)
    noise = rng.lognormal(-0.5 * math.log1p(DEVIATION**2), DEVIATION, (num_steps, work.size))
    computing = np.array([o.resource is Resource.WORKER for o in graph.operations])
    applying = np.array([o.resource is Resource.SERVER for o in graph.operations])
    seconds = np.where(computing, COMPUTE_S * work / work[computing].sum(), np.where(applying, 2e-5, 0.0))
    return separate_parsing(Trace(tuple(graph.operations), seconds * noise, SAMPLES_PER_STEP), PARSING)


def _add_training(graph: _Graph, layers: list[Convolution], received: dict[tuple[int, str], int]) -> None:
    """Forward, backward, and what goes to the server."""
    worker = Resource.WORKER
    joins: list[int] = []
    before: tuple[int, ...] = ()
    outputs: list[int] = []
    for i, layer in enumerate(layers):
        ends_branch = i + 1 == len(layers) or (layers[i + 1].block, layers[i + 1].branch) != (
            layer.block,
            layer.branch,
        )
        starts_branch = i == 0 or (layers[i - 1].block, layers[i - 1].branch) != (layer.block, layer.branch)
        start = (joins[-1],) if joins else ()
        inputs = start if starts_branch else before
        conv = graph.add(f"conv{i}", worker, received[i, "kernel"], *inputs, work=layer.work)
        norm = graph.add(f"norm{i}", worker, conv, received[i, "offset"], work=0.02 * layer.work)
        before = (graph.add(f"relu{i}", worker, norm, work=0.01 * layer.work),)
        for moment in ("mean", "variance"):
            _send(graph, f"{moment}{i}", 4 * layer.filters, norm, num_updates=3)
        if ends_branch:
            outputs.extend(before)
        if i + 1 == len(layers) or layers[i + 1].block != layer.block:
            pool = graph.add(f"pool{layer.block}", worker, *start, work=0.01 * layer.work)
            joins.append(graph.add(f"concat{layer.block}", worker, pool, *outputs, work=0.01 * layer.work))
            outputs = []
    last = len(layers)
    logits = graph.add("logits", worker, joins[-1], received[last, "kernel"], work=4 * 2048 * 1000)
    biased = graph.add("bias", worker, logits, received[last, "offset"], work=1000)
    gradient = graph.add("loss gradient", worker, biased, work=1000)
    for kind, size in (("kernel", 2048 * 1000), ("offset", 1000)):
        _send_gradient(graph, f"{kind}{last}", size, gradient, received[last, kind], 2048 * 1000)
    gradient = graph.add("features gradient", worker, gradient, work=2048 * 1000)
    for i in reversed(range(len(layers))):
        layer = layers[i]
        if i + 1 == len(layers) or layers[i + 1].block != layer.block:
            split = graph.add(f"split{layer.block}", worker, gradient, work=0.01 * layer.work)
            gradient = graph.add(f"pool gradient{layer.block}", worker, split, work=0.01 * layer.work)
        relu = graph.add(f"relu gradient{i}", worker, gradient, work=0.01 * layer.work)
        norm = graph.add(f"norm gradient{i}", worker, relu, work=0.03 * layer.work)
        _send_gradient(graph, f"offset{i}", layer.filters, norm, received[i, "offset"], 0.0)
        _send_gradient(graph, f"kernel{i}", layer.num_weights, norm, received[i, "kernel"], layer.work)
        gradient = graph.add(f"conv gradient{i}", worker, norm, work=layer.work)


def _send_gradient(
    graph: _Graph, variable: str, size: int, gradient: int, received: int, work: float
) -> None:
    """Its own gradient, that of the weight decay, their sum, and the update."""
    own = graph.add(f"{variable} gradient", Resource.WORKER, gradient, work=work)
    norm = graph.add(f"{variable} norm", Resource.WORKER, received, work=size)
    decay = graph.add(f"{variable} decay", Resource.WORKER, norm, work=size)
    total = graph.add(f"{variable} sum", Resource.WORKER, own, decay, work=size)
    _send(graph, variable, 4 * size, total, num_updates=1)


def _send(graph: _Graph, variable: str, num_bytes: int, after: int, num_updates: int) -> None:
    last = graph.add(f"send {variable}", Resource.UPLINK, after, num_bytes=num_bytes, variable=variable)
    for update in range(num_updates):
        last = graph.add(f"update {variable}.{update}", Resource.SERVER, last, variable=variable)
