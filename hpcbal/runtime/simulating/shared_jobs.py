"""Simulate many parameter-server jobs on the same machines as a run would play them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.config import JobsConfig
from hpcbal.errors import InputError
from hpcbal.paramserver.api.batch import num_steps
from hpcbal.runtime.jobs.groups import check_fits, policy_of
from hpcbal.runtime.jobs.loading import LoadedJob, first_cut
from hpcbal.runtime.jobs.needs import needs_of
from hpcbal.runtime.simulating.sizes import serving_job
from hpcbal.simulator.coscheduling.job import NAIVE, SharingDelays, SimulatedJob, SimulatedMachine, Turns
from hpcbal.simulator.coscheduling.record import SharingRun
from hpcbal.simulator.coscheduling.run import simulate_sharing
from hpcbal.simulator.paramserver.job import ServingJob

MOST_FRAMED = 16
"""Machines of a run that is simulated frame by frame, at most. A pull or a push of a job takes frames between
any two of its machines, so larger runs would take minutes."""


def is_framed(num_machines: int) -> bool:
    """Whether a run is simulated frame by frame, or pull by pull."""
    return num_machines <= MOST_FRAMED


def forecast_jobs(
    config: JobsConfig, loaded: Mapping[str, LoadedJob], num_machines: int, delays: SharingDelays
) -> SharingRun:
    """Run the jobs of a file to their end in virtual time, frame by frame if `is_framed`.

    Args:
        config: the file; each job has `seconds_per_sample`, and each machine a bandwidth.
        loaded: the app and the data of each job, by name.
        num_machines: of the run, >= 1.
        delays: that pass beside computing and links.

    Raises:
        InputError: a job fits on no number of machines, or fixed groups need more than there are.
        UserCodeError: an app or a dataset raises.
    """
    jobs = [simulated_job(config, name, job, num_machines) for name, job in loaded.items()]
    frames = None
    if is_framed(num_machines):
        frames = {name: _frames_of(config, name, job, num_machines) for name, job in loaded.items()}
    schedule = config.schedule
    turns = NAIVE if schedule.paradigm == "naive" else Turns(is_synchronised=schedule.takes_turns_at_links)
    return simulate_sharing(
        jobs,
        simulated_machines(config, num_machines),
        policy_of(config, num_machines),
        turns=turns,
        delays=delays,
        warm_up=schedule.warm_up,
        profile_iterations=schedule.profile_iterations,
        seed=config.seed,
        frames=frames,
    )


def _frames_of(config: JobsConfig, name: str, loaded: LoadedJob, num_machines: int) -> ServingJob:
    """A job of a file, as far as its frames go."""
    job = next(each for each in config.jobs if each.name == name)
    cut = first_cut(job, loaded, num_machines)
    return serving_job(job, config.seed_of(job), loaded, cut, None)


def check_speeds(config: JobsConfig) -> None:
    """Check that the file says how fast jobs and links are.

    Raises:
        InputError: it does not.
    """
    simulated_machines(config, 1)
    missing = [job.name for job in config.jobs if job.seconds_per_sample is None]
    if missing:
        raise InputError(
            f"jobs.{missing[0]}.seconds_per_sample: got null, allowed here: seconds above 0; measure a step "
            "of the job, for instance in the ledger of a run"
        )


def simulated_machines(config: JobsConfig, num_machines: int) -> Sequence[SimulatedMachine]:
    """The emulated machines of a file.

    Raises:
        InputError: it has none, or the bandwidth of one is missing.
    """
    found = []
    for index in range(num_machines):
        machine = config.machine_of(index)
        if machine is None or machine.bandwidth is None:
            where = "machines: got []" if machine is None else "machines: got one without a bandwidth"
            raise InputError(
                f"{where}, allowed here: machines with a bandwidth, such as "
                "'{count: 8, bandwidth: 100MB/s}'; give those that you want to predict"
            )
        found.append(SimulatedMachine(machine.bandwidth, machine.speed))
    return found


def simulated_job(config: JobsConfig, name: str, loaded: LoadedJob, num_machines: int) -> SimulatedJob:
    """A job of a file, with its sizes; see `forecast_jobs`."""
    job = next(each for each in config.jobs if each.name == name)
    assert job.seconds_per_sample is not None
    cut = first_cut(job, loaded, num_machines)
    needs = needs_of(loaded, job, cut, config.seed_of(job))
    check_fits(config, name, needs.memory, num_machines)
    steps = num_steps(loaded.num_samples, job.mini_batch)
    return SimulatedJob(
        name,
        compute_s=job.seconds_per_sample * loaded.num_samples / steps,
        iterations=steps * job.stop.max_epochs,
        dense_bytes=float(loaded.dense_bytes),
        sparse_bytes=needs.sent_row_bytes,
        most_sparse_bytes=needs.most_row_bytes,
        row_growth=needs.row_growth,
        arrives_s=job.arrives_s,
        state_bytes=float(loaded.parameter_bytes),
        input_bytes=needs.memory.input_bytes,
        memory=needs.memory,
        data_blocks=cut.data,
        parameter_blocks=sum(cut.parameters),
    )
