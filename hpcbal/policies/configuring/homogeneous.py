"""Choose the numbers of workers and servers among equal machines."""

from __future__ import annotations

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.configuring.cost_model import Configuration, Problem, on_shared_links, served_bytes


def analytic_epoch_s(problem: Problem, num_workers: int) -> float:
    """Epoch time of equal machines with even shares in real numbers.

    Args:
        num_workers: 1..number of machines - 1; the other machines are servers.

    Source: [PS] Eq. 3.5, with the assumptions of `epoch_cost` in place of D/w * (C_proc + M/b * max(1,
        w/(N-w)) / B): D/w * max(C_proc + (M_pull + M_push)/b / B, w/(N-w) * max(M_pull, M_push)/b / B).
    """
    samples = problem.num_samples / num_workers
    turns = samples / problem.mini_batch if problem.turns == "per_worker" else float(problem.shared_turns)
    return _longer_s(problem, num_workers, samples, 1.0 / (len(problem.machines) - num_workers), turns)


def best_homogeneous(problem: Problem) -> Configuration:
    """The numbers of workers and servers with the shortest epoch, in O(N) for N machines.

    Blocks are whole, so shares differ by at most one block, and the largest share counts: for w workers that
    is ceil(data blocks / w), and likewise for servers. Rounding can favour another w than real numbers do: 9
    servers hold 16 blocks no faster than 8. Ties go to fewer workers. The first machines are workers, the
    next ones servers; machines without a block stand by.

    Raises: PolicyError: machines differ, there are fewer than 2, or the blocks do not fit into memory.
    Source: [PS] Eq. 3.5. The paper does not say how it rounds.
    """
    machine = problem.machines[0]
    num_machines = len(problem.machines)
    if any(other != machine for other in problem.machines):
        raise PolicyError("machines: got unlike ones, allowed: equal machines; use best_heterogeneous")
    if num_machines < 2:
        raise PolicyError("machines: got 1, allowed: at least 2, a worker and a server")
    most_data = problem.most_data_blocks(machine)
    most_parameters = problem.most_parameter_blocks(machine)
    best: tuple[float, int] | None = None
    for num_workers in range(1, min(num_machines - 1, problem.num_data_blocks) + 1):
        num_servers = num_machines - num_workers
        data = -(-problem.num_data_blocks // num_workers)
        parameters = -(-problem.num_parameter_blocks // num_servers)
        if data > most_data or parameters > most_parameters:
            continue
        epoch_s = _epoch_s(problem, num_workers, data, parameters)
        if best is None or epoch_s < best[0]:
            best = epoch_s, num_workers
    if best is None:
        raise PolicyError(
            f"memory: {num_machines} machines of {machine.memory_bytes:.4g} bytes cannot hold the data and "
            "the model in any split; add executors, raise memory_per_rank, or use more blocks"
        )
    num_workers = best[1]
    num_servers = min(num_machines - num_workers, problem.num_parameter_blocks)
    idle = [0] * (num_machines - num_workers - num_servers)
    data_blocks = split_evenly(problem.num_data_blocks, num_workers)
    parameter_blocks = split_evenly(problem.num_parameter_blocks, num_servers)
    return Configuration.of_blocks(
        [*data_blocks, *[0] * num_servers, *idle], [*[0] * num_workers, *parameter_blocks, *idle]
    )


def _epoch_s(problem: Problem, num_workers: int, data: int, parameters: int) -> float:
    """Epoch time of the worker with the most data blocks, in O(1)."""
    share = parameters / problem.num_parameter_blocks
    samples = data * problem.samples_per_block
    turns = problem.num_turns(samples)
    return _longer_s(problem, num_workers, samples, share, float(turns))


def _longer_s(problem: Problem, num_workers: int, samples: float, share: float, turns: float) -> float:
    """Epoch time of a worker with so many samples and turns; see `epoch_cost`.

    Args:
        share: of the model on the fullest server.
    """
    machine = problem.machines[0]
    served_s = share * problem.serve_s_per_byte(machine) * served_bytes(problem, num_workers)
    if problem.turns == "per_worker":
        moved, served_s = turns * problem.full_turn_bytes, turns * served_s
    else:
        moved = turns * problem.turn_bytes + samples * problem.bytes_per_sample
    link_s = moved / machine.bandwidth
    own_s = samples * machine.seconds_per_sample + link_s + turns * problem.turn_overhead_s
    if problem.links == "shared":
        shared_s = on_shared_links(problem, num_workers, own_s, link_s, share * link_s)
        processed_s = share * machine.service_s_per_byte * served_bytes(problem, num_workers)
        return max(shared_s, own_s + processed_s) if problem.has_barrier else max(shared_s, served_s)
    return own_s + served_s if problem.has_barrier else max(own_s, served_s)
