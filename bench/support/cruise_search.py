"""Where Cruise ends, beside the best of all configurations: both simulated frame by frame, N = 32."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from workloads.cruise_jobs import (
    APPS,
    FASTER,
    MAX_EPOCHS,
    MODES,
    UNLIKE_STARTS,
    simulated,
    tuner_of,
)

from hpcbal.paramserver.store.ownership import dealt_out
from hpcbal.policies.configuring import Machine, Problem, paper_optimum
from hpcbal.simulator.serving import Delays, ServingMachine, ServingRun, simulate_job

ALLOWED = 0.97
PAPER_LEAST = 0.939
"""[PS] Tab. 3.4: NMF from (18, 14)."""

DELAYS = Delays(send_s=1e-3, notice_s=1e-3, control_s=1e-3)
"""As in the emulated runs that confirm the simulator."""

TUNED_EPOCHS = 8
"""After so many Cruise has had time to end somewhere."""

SMALL_GAIN = 0.02
"""`tune.min_gain` of the jobs that are held against `ALLOWED`. With the default, 5 % as in [PS] Sec. 3.3.1, a
job that is 4.9 % from its best stays there, so nothing above 0.95 can be demanded."""

Roles = tuple[int, int]
"""Numbers of workers and servers."""


def epoch_of_roles(name: str, mode: str, num_machines: int, roles: Roles) -> float:
    """Steady epoch time, shares as even as blocks allow."""
    workers, servers = roles
    job, machine = simulated(APPS[name], mode, num_machines)
    data = dealt_out(job.num_data_blocks, range(1, workers + 1))
    parameters = dealt_out(job.layout.num_blocks, range(workers + 1, workers + servers + 1))
    run = simulate_job(job, [machine] * num_machines, data, parameters, delays=DELAYS)
    return run.steady_epoch_s


def tuned_from(
    name: str, mode: str, num_machines: int, start: Roles, min_gain: float | None = None
) -> tuple[Roles, float]:
    """Let Cruise configure the job while it trains; returns the roles with which it ends, and their epoch."""
    app = APPS[name]
    job, machine = simulated(app, mode, num_machines, max_epochs=MAX_EPOCHS)
    data = dealt_out(job.num_data_blocks, range(1, start[0] + 1))
    parameters = dealt_out(job.layout.num_blocks, range(start[0] + 1, sum(start) + 1))
    machines = [machine] * num_machines
    run = simulate_job(
        job,
        machines,
        data,
        parameters,
        delays=DELAYS,
        watcher=lambda of_job: tuner_of(app, job, of_job, min_gain=min_gain),
        most_epochs=TUNED_EPOCHS,
    )
    roles = len(set(run.data_owner)), len(set(run.parameter_owner))
    return roles, _epoch_of_owners(name, mode, num_machines, run)


def saved_on_unlike(name: str, mode: str) -> tuple[Roles, float, float]:
    """Let Cruise configure a job on 28 slow and 4 fast machines, from one of the paper's bad starts.

    Returns: the numbers of workers and servers with which it ends, and the epochs of jobs that begin with the
        first and with the last configuration and keep it, in seconds.
    """
    app, (workers, servers, _) = APPS[name], UNLIKE_STARTS[name]
    job, slow = simulated(app, mode, sum(workers + servers), max_epochs=MAX_EPOCHS)
    fast = ServingMachine(slow.seconds_per_sample / FASTER, slow.bandwidth * FASTER)
    machines = [slow] * workers[0] + [fast] * workers[1] + [slow] * servers[0] + [fast] * servers[1]
    ranks = range(1, len(machines) + 1)
    data = dealt_out(job.num_data_blocks, ranks[: sum(workers)])
    parameters = dealt_out(job.layout.num_blocks, ranks[sum(workers) :])
    tuned = simulate_job(
        job,
        machines,
        data,
        parameters,
        delays=DELAYS,
        watcher=lambda of_job: tuner_of(app, job, of_job, machines),
        most_epochs=TUNED_EPOCHS,
    )
    fixed, _ = simulated(app, mode, len(machines))
    before_s = simulate_job(fixed, machines, data, parameters, delays=DELAYS).steady_epoch_s
    after_s = simulate_job(
        fixed, machines, tuned.data_owner, tuned.parameter_owner, delays=DELAYS
    ).steady_epoch_s
    roles = len(set(tuned.data_owner)), len(set(tuned.parameter_owner))
    return roles, before_s, after_s


def _epoch_of_owners(name: str, mode: str, num_machines: int, run: ServingRun) -> float:
    job, machine = simulated(APPS[name], mode, num_machines)
    owners = run.data_owner, run.parameter_owner
    return simulate_job(job, [machine] * num_machines, *owners, delays=DELAYS).steady_epoch_s


def searched(num_machines: int = 32) -> dict[str, Any]:
    """The keys of the search: every number of workers, all other machines being servers."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        epochs = {
            (name, mode, roles): pool.submit(epoch_of_roles, name, mode, num_machines, roles)
            for name in APPS
            for mode in MODES
            for roles in ((workers, num_machines - workers) for workers in range(1, num_machines))
        }
        tuned = {
            (name, mode, start): pool.submit(tuned_from, name, mode, num_machines, start)
            for name, mode, start in _published(num_machines)
        }
        with_small_gain = {
            case: pool.submit(tuned_from, case[0], case[1], num_machines, case[2], SMALL_GAIN)
            for case in tuned
        }
        unlike = {
            (name, mode): pool.submit(saved_on_unlike, name, mode) for name in UNLIKE_STARTS for mode in MODES
        }
        epoch_s = {case: future.result() for case, future in epochs.items()}
        print("tune.min_gain 0.05, the default:")
        ends = {case: future.result() for case, future in tuned.items()}
        result = _summary(ends, epoch_s, num_machines, suffix="_default")
        print(f"tune.min_gain {SMALL_GAIN}:")
        ends = {case: future.result() for case, future in with_small_gain.items()}
        result |= _summary(ends, epoch_s, num_machines)
        print(
            f"chosen_over_best_min {result['chosen_over_best_min']:.3f} (at least {ALLOWED}; the paper: "
            f"{PAPER_LEAST}); with the default {result['chosen_over_best_min_default']:.3f}",
            flush=True,
        )
        for mode in MODES:
            result[f"paper_over_best_{mode}"] = _paper_over_best(mode, epoch_s, num_machines)
        for (name, mode), future in unlike.items():
            roles, before_s, after_s = future.result()
            workers, servers, published = UNLIKE_STARTS[name]
            result[f"saved_unlike_{mode}_{name}"] = saved = 1.0 - after_s / before_s
            print(
                f"{name:<6} {mode:<6} 28 slow and 4 fast, from {workers} workers, {servers} servers: "
                f"{before_s:8.1f} s, ends at {roles!s:<9} {after_s:8.1f} s  saves {saved:6.1%} "
                f"(paper {published:.1%})",
                flush=True,
            )
        return result


def _paper_roles(name: str, mode: str, num_machines: int) -> Roles:
    """Workers and servers by the paper's own cost model, each worker taking turns of its own mini-batch."""
    job, machine = simulated(APPS[name], mode, num_machines)
    app = APPS[name]
    problem = Problem(
        machines=(Machine(machine.seconds_per_sample, machine.bandwidth),) * num_machines,
        num_samples=job.num_samples,
        num_data_blocks=job.num_data_blocks,
        num_parameter_blocks=sum(job.parameter_blocks),
        mini_batch=app.mini_batch,
        turns="per_worker",
        pull_bytes=app.model_bytes,
        push_bytes=app.model_bytes,
    )
    workers = paper_optimum(problem)
    return workers, num_machines - workers


def _published(num_machines: int) -> dict[tuple[str, str, Roles], float]:
    """Bad starts, in proportion to the number of machines, and what the paper saved from there."""
    found = {}
    for name, app in APPS.items():
        for mode in MODES:
            for (workers, servers), saved in app.starts.items():
                scaled = round(workers * num_machines / (workers + servers))
                found[name, mode, (scaled, num_machines - scaled)] = saved
    return found


def _share_of_best(
    case: tuple[str, str, Roles], end_s: float, epoch_s: Mapping[tuple[str, str, Roles], float]
) -> float:
    """The shortest epoch of all configurations of a job over that with which Cruise ends, at most 1."""
    best_s = min(seconds for of_case, seconds in epoch_s.items() if of_case[:2] == case[:2])
    return min(1.0, best_s / end_s)


def _summary(
    tuned: Mapping[tuple[str, str, Roles], tuple[Roles, float]],
    epoch_s: Mapping[tuple[str, str, Roles], float],
    num_machines: int,
    suffix: str = "",
) -> dict[str, Any]:
    """Print where Cruise ended from each start; returns the keys, with a suffix."""
    result: dict[str, Any] = {}
    shares: dict[str, list[float]] = {mode: [] for mode in MODES}
    published = _published(num_machines)
    for (name, mode, start), (end, end_s) in tuned.items():
        of_job = {roles: s for (n, m, roles), s in epoch_s.items() if (n, m) == (name, mode)}
        best = min(of_job, key=lambda roles: of_job[roles])
        share = _share_of_best((name, mode, start), end_s, epoch_s)
        saved = 1.0 - end_s / of_job[start]
        shares[mode].append(share)
        result[f"saved_{mode}_{name}_{start[0]}_{start[1]}{suffix}"] = saved
        print(
            f"{name:<6} {mode:<6} from {start!s:<9} {of_job[start]:8.1f} s  ends at {end!s:<9} "
            f"{end_s:8.1f} s  saves {saved:6.1%} (paper {published[name, mode, start]:.1%})  "
            f"best {best!s:<9} {of_job[best]:8.1f} s  best/chosen {share:.3f}",
            flush=True,
        )
    for mode, found in shares.items():
        result[f"chosen_over_best_{mode}{suffix}"] = min(found)
    result[f"chosen_over_best_min{suffix}"] = min(map(min, shares.values()))
    return result


def _paper_over_best(mode: str, epoch_s: Mapping[tuple[str, str, Roles], float], num_machines: int) -> float:
    """The shortest epoch over that at the optimum of the paper's model, the least of all apps."""
    least = min(
        min(s for (n, m, _), s in epoch_s.items() if (n, m) == (name, mode))
        / epoch_s[name, mode, _paper_roles(name, mode, num_machines)]
        for name in APPS
    )
    print(f"{mode}: best epoch over that at the optimum of the paper's model {least:.3f}, the least")
    return least
