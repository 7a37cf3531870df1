"""The cost model of the paper as it stands, to compare ours with; nothing is configured by it."""

from __future__ import annotations

import math

from hpcbal.policies.configuring.cost_model import Configuration, Problem


def paper_epoch_s(problem: Problem, configuration: Configuration) -> float:
    """Epoch time of the slowest worker by [PS] Eq. 3.1 to 3.4.

    Every worker takes turns of `mini_batch` samples of its own. The bytes of a full turn, pulled or pushed,
    whichever are more, are the paper's size M of the model.

    Args:
        problem: its barrier, overheads and service times do not count.
        configuration: with at least one worker and one server.
    """
    machines, workers, servers = problem.machines, configuration.workers, configuration.servers
    model_bytes = problem.busier_share * problem.full_turn_bytes
    held = {
        j: model_bytes * configuration.parameter_blocks[j] / problem.num_parameter_blocks for j in servers
    }
    slowest = 0.0
    for i in workers:
        samples = configuration.data_blocks[i] * problem.samples_per_block
        link_s = {j: held[j] / min(machines[i].bandwidth, machines[j].bandwidth) for j in servers}
        served_s = max(len(workers) * seconds for seconds in link_s.values())
        turn_s = max(served_s, sum(link_s.values()))
        turns = math.ceil(samples / problem.mini_batch)
        slowest = max(slowest, machines[i].seconds_per_sample * samples + turns * turn_s)
    return slowest


def paper_optimum(problem: Problem) -> int:
    """The best number of workers among equal machines by [PS] Eq. 3.5, in O(N); the others are servers.

    Args:
        problem: of at least two equal machines.
    """
    machine, count = problem.machines[0], len(problem.machines)
    transfer_s = problem.busier_share * problem.full_turn_bytes / machine.bandwidth

    def epoch_s(workers: int) -> float:
        sample_s = (
            machine.seconds_per_sample
            + transfer_s * max(1.0, workers / (count - workers)) / problem.mini_batch
        )
        return problem.num_samples / workers * sample_s

    return min(range(1, count), key=epoch_s)
