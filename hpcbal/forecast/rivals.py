"""Coarser models of the same throughput: a queueing network, and a formula ([ASGD] Sec. 1, 4.4).

Both see a step as phases, one after the other, and know nothing of operations that overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hpcbal.errors import PolicyError
from hpcbal.forecast.cluster import Topology
from hpcbal.forecast.overhead import separate_parsing
from hpcbal.forecast.prediction import TracedJob
from hpcbal.forecast.simulation import Chunk, simulate
from hpcbal.forecast.trace import Resource

NUM_STEPS = 100
"""Steps of the one worker whose phases are measured, as many as [ASGD] profiles."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Mean seconds of the phases of a step of one worker, as one sees them on its link.

    Attributes:
        down_s: from the start of the step to the end of its last transfer from a server.
        compute_s: from there to the start of the first transfer to a server; 0 if that starts before.
        up_s: from there to the end of the last such transfer, with what lies between transfers.
        update_s: from there to the end of the step.
    """

    down_s: float
    compute_s: float
    up_s: float
    update_s: float


def phases_of(job: TracedJob) -> Phases:
    """Replay one worker and one server's links, and look at the transfers only.

    Source: [ASGD] Sec. 1 on how [LIN] measures, with tcpdump.
    """
    alone = replace(job, cluster=Topology(job.cluster.workers[:1], job.cluster.servers))
    trace = separate_parsing(alone.trace, alone.parsing)
    down: dict[int, float] = {}
    begin: dict[int, float] = {}
    up: dict[int, float] = {}

    def look(chunk: Chunk) -> None:
        resource = trace.operations[chunk.operation].resource
        if resource is Resource.DOWNLINK:
            down[chunk.step] = chunk.end_s
        elif resource is Resource.UPLINK:
            # Chunks come in the order of their ends, which is that of their begins on one link only.
            begin[chunk.step] = min(begin.get(chunk.step, math.inf), chunk.begin_s)
            up[chunk.step] = chunk.end_s

    replay = simulate(trace, alone.cluster, replace(alone.settings, num_steps=NUM_STEPS), look)
    ends = [0.0, *replay.ends_s[0].tolist()]
    totals = [0.0] * 4
    for step in range(NUM_STEPS):
        downloaded = down.get(step, ends[step])
        sending = max(begin.get(step, ends[step + 1]), downloaded)
        sent = max(up.get(step, sending), sending)
        for phase, (first, last) in enumerate(
            [(ends[step], downloaded), (downloaded, sending), (sending, sent), (sent, ends[step + 1])]
        ):
            totals[phase] += (last - first) / NUM_STEPS
    return Phases(*totals)


def queueing(phases: Phases, num_workers: int, samples_per_step: int) -> float:
    """Samples per second of a closed queueing network in which each worker is a customer.

    The links are shared equally (processor sharing); computation and updates delay each worker for itself.
    Mean value analysis gives the throughput, exactly for such a network.

    Args:
        phases: of one worker; down and up are the demands of the two links.
        num_workers: >= 1.

    Source: [LIN] as [ASGD] Sec. 1 and 6 describe it. Deviation: the paper was not at hand, so the stations
    are ours.
    """
    demands = (phases.down_s, phases.up_s)
    queues = [0.0, 0.0]
    steps_per_s = 0.0
    for customers in range(1, num_workers + 1):
        waits = [demand * (1.0 + queue) for demand, queue in zip(demands, queues, strict=True)]
        steps_per_s = customers / (sum(waits) + phases.compute_s + phases.update_s)
        queues = [steps_per_s * wait for wait in waits]
    return steps_per_s * samples_per_step


def cynthia(job: TracedJob, num_workers: int, *, halved: bool = False) -> float:
    """Samples per second by W K / (T_p max(1, W U_1) + 2 T_C).

    K is the batch size, T_p the time to process a batch (the worker's computation and delays), T_C the time
    to send the model over a server's link, and U_1 the use of the network with one worker,
    2 T_C / (T_p + 2 T_C).

    Args:
        halved: with half of T_C, as both directions have links of their own ([ASGD] Sec. 4.4).

    Raises:
        PolicyError: the worker neither computes nor waits nor receives anything: the formula has no answer.

    Source: [CYNTHIA] as [ASGD] Sec. 1 cites it. Deviation: how U_1 is measured is ours.
    """
    process_s = job.trace.seconds_per_step(Resource.WORKER) * job.cluster.workers[0].slowness
    process_s += job.trace.seconds_per_step(Resource.DELAY)
    transfer_s = max(
        job.trace.num_bytes(Resource.DOWNLINK, server) / links.down_bytes_per_s
        for server, links in enumerate(job.cluster.servers)
    )
    transfer_s /= 2.0 if halved else 1.0
    if not process_s + transfer_s > 0.0:
        raise PolicyError(
            "cynthia: in the trace the worker neither computes nor receives anything, so this formula has no "
            "answer; leave the rivals out"
        )
    use = 2.0 * transfer_s / (process_s + 2.0 * transfer_s)
    step_s = process_s * max(1.0, num_workers * use) + 2.0 * transfer_s
    return num_workers * job.trace.samples_per_step / step_s
