"""Read the measurements of an earlier run of a parameter-server job, and predict its epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal.cluster.roles import LEAST_EXECUTORS
from hpcbal.config import JobsConfig, ParamServerConfig
from hpcbal.errors import InputError, PolicyError
from hpcbal.policies.configuring.cost_model import Machine, Problem, epoch_cost
from hpcbal.policies.configuring.metrics import measured_bandwidth
from hpcbal.policies.configuring.trigger import best_configuration
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.file import read_ledger
from hpcbal.telemetry.ledger.job_lines import JobEpochLine, ReconfiguredLine, RolesAssignedLine, WorkerFacts


@dataclass(frozen=True, slots=True)
class MeasuredEpoch:
    """The last epoch of a run that was trained with one configuration from its begin to its end.

    Attributes:
        num_samples: of the dataset.
        num_data_blocks, num_parameter_blocks: into which the run cut samples and tables.
        parameter_bytes: size of all tables.
        num_workers, num_servers: of the configuration.
        epoch_s: wall time of the epoch, with its objective if it had one.
        seconds_per_sample: mean over all workers.
        turn_bytes: pulled and pushed by a worker in a turn, mean.
        communication_s: of a turn, mean: the pull, and in `sync` also the push.
    """

    num_samples: int
    num_data_blocks: int
    num_parameter_blocks: int
    parameter_bytes: int
    num_workers: int
    num_servers: int
    epoch_s: float
    seconds_per_sample: float
    turn_bytes: float
    communication_s: float


def measured_in(ledger: Path, *, has_barrier: bool) -> MeasuredEpoch | None:
    """`last_measured` of a ledger file.

    Raises:
        LedgerError: the file is not a ledger of this or the previous schema.
        OutputError: it cannot be read.
    """
    return last_measured(read_ledger(ledger), has_barrier=has_barrier)


def last_measured(entries: Sequence[Entry], *, has_barrier: bool) -> MeasuredEpoch | None:
    """Return the measurements of the last whole epoch in a ledger; None if there is none.

    Args:
        has_barrier: whether the job is synchronous, so that a worker waits for its pushes.
    """
    start: RolesAssignedLine | None = None
    roles: tuple[str, ...] = ()
    has_changed = True
    found: MeasuredEpoch | None = None
    for entry in entries:
        line = entry.line
        if isinstance(line, RolesAssignedLine):
            start, roles, has_changed = line, line.roles, True  # the first epoch includes the start
        elif isinstance(line, ReconfiguredLine):
            roles, has_changed = line.roles, True
        elif isinstance(line, JobEpochLine) and start is not None:
            if not has_changed and (measured := _of_epoch(start, roles, line, has_barrier)) is not None:
                found = measured
            has_changed = False
    return found


def _of_epoch(
    start: RolesAssignedLine, roles: Sequence[str], line: JobEpochLine, has_barrier: bool
) -> MeasuredEpoch | None:
    workers = [each for each in line.workers if each.turns and each.samples]
    samples, turns = sum(each.samples for each in workers), sum(each.turns for each in workers)
    num_bytes = sum(each.num_bytes for each in workers)
    if not workers or not num_bytes or "both" in roles:
        return None
    return MeasuredEpoch(
        start.num_samples,
        sum(start.data_blocks),
        sum(start.parameter_blocks),
        start.parameter_bytes,
        roles.count("worker"),
        roles.count("server"),
        line.seconds,
        sum(each.compute_s for each in workers) / samples,
        num_bytes / turns,
        sum(_waited_s(each, has_barrier) for each in workers) / turns,
    )


def _waited_s(worker: WorkerFacts, has_barrier: bool) -> float:
    return worker.pull_s + (worker.push_s if has_barrier else 0.0)


@dataclass(frozen=True, slots=True)
class PredictedConfiguration:
    """The configuration that is predicted to be fastest.

    Attributes:
        seconds_per_sample, bandwidth: of the first executor; others may be emulated to be unlike.
    """

    num_workers: int
    num_servers: int
    epoch_s: float
    seconds_per_sample: float
    bandwidth: float


def predicted(
    config: ParamServerConfig, measured: MeasuredEpoch, num_executors: int
) -> PredictedConfiguration | None:
    """Predict the epoch at the best configuration of so many executors.

    Speeds are those of the file's `machines`; what it leaves out is taken as measured, for all executors.

    Returns: None if no configuration is possible.
    """
    problem = _problem(config, measured, num_executors)
    first = problem.machines[0]
    try:
        chosen = best_configuration(problem)
        cost = epoch_cost(problem, chosen)
    except PolicyError:
        return None
    return PredictedConfiguration(
        len(chosen.workers), len(chosen.servers), cost.epoch_s, first.seconds_per_sample, first.bandwidth
    )


def _problem(config: ParamServerConfig, measured: MeasuredEpoch, num_executors: int) -> Problem:
    return Problem(
        machines_of(config, num_executors, measured),
        num_samples=measured.num_samples,
        num_data_blocks=measured.num_data_blocks,
        num_parameter_blocks=measured.num_parameter_blocks,
        mini_batch=config.mini_batch,
        turns="per_worker" if config.staleness is None else "shared",
        pull_bytes=measured.turn_bytes / 2,
        push_bytes=measured.turn_bytes / 2,
        has_barrier=config.staleness == 0,
        model_bytes=float(measured.parameter_bytes),
        links=config.link_model,
    )


def default_executors(config: ParamServerConfig | JobsConfig) -> int:
    """Return how many executors to plan for if nobody says: one node's, those of the file, or the fewest."""
    in_file = sum(machine.count for machine in config.machines)
    if isinstance(config, JobsConfig):
        return max(LEAST_EXECUTORS, in_file or sum(group.machines for group in config.schedule.groups or ()))
    if isinstance(config.slots.per_node, int):
        return config.slots.per_node
    fewest = sum(1 if count == "auto" else count for count in (config.workers, config.servers))
    return max(fewest, in_file)


def machines_of(
    config: ParamServerConfig, num_executors: int, measured: MeasuredEpoch | None
) -> tuple[Machine, ...]:
    """How fast executors are: as the file's `machines` say, and as measured what they leave out.

    Raises:
        InputError: they leave something out, and nothing was measured.
    """
    bandwidth = None if measured is None else _bandwidth(config, measured)
    machines = []
    for i in range(num_executors):
        emulated = config.machine_of(i)
        seconds = None if measured is None else measured.seconds_per_sample
        rate = bandwidth
        if emulated is not None:
            if emulated.seconds_per_sample is not None:
                seconds = emulated.seconds_per_sample / emulated.speed
            rate = emulated.bandwidth or rate
        if seconds is None or rate is None:
            missing = "seconds_per_sample" if seconds is None else "bandwidth"
            where = "machines" if emulated is None else f"machines.{config.machines.index(emulated)}"
            raise InputError(
                f"{where}: has no {missing}, and no run in {config.output.dir} has measured it; give each "
                "machine seconds_per_sample and bandwidth, or run the job for two epochs first"
            )
        machines.append(Machine(seconds, rate))
    return tuple(machines)


def _bandwidth(config: ParamServerConfig, measured: MeasuredEpoch) -> float:
    turn_samples = config.mini_batch / (1 if config.staleness is None else measured.num_workers)
    # Blocks are dealt out evenly, so the fullest server holds the rounded-up share.
    largest = -(-measured.num_parameter_blocks // measured.num_servers) / measured.num_parameter_blocks
    return measured_bandwidth(
        measured.turn_bytes,
        measured.num_workers,
        largest,
        measured.communication_s,
        turn_samples * measured.seconds_per_sample,
        config.staleness == 0,
        config.link_model,
    )
