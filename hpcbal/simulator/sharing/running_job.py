"""One start of a simulated job on machines in cohorts, subtask by subtask.

Pulls and pushes take as long as their bytes on the slowest link of the job. First pushes and objectives are
left out: see `framed_job`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from hpcbal.paramserver.machine.messages import TurnDone
from hpcbal.paramserver.sharing.profiling import IterationMeter
from hpcbal.paramserver.sharing.synchroniser import KEEP_S, Grant, NetworkSynchroniser
from hpcbal.paramserver.store.ownership import dealt_out
from hpcbal.policies.grouping import JobLoad
from hpcbal.simulator.serving.clock import Clock
from hpcbal.simulator.sharing.cohorts import Cohorts
from hpcbal.simulator.sharing.job import SharingDelays, SimulatedJob, SimulatedMachine
from hpcbal.simulator.sharing.start import Hears


class Progress:
    """What of a job outlives its starts.

    Args:
        job: what is simulated.
        noise: computing of an iteration takes at most this share longer or shorter, on all machines alike.
        seed: of the noise.

    Attributes:
        iterations: that are done.
        compute_s: machine-seconds that have been computed, at speed 1.
    """

    def __init__(self, job: SimulatedJob, noise: float, seed: int) -> None:
        self.job, self._noise = job, noise
        self._rng = random.Random(f"{seed} {job.name}")
        self.iterations = 0
        self.compute_s = 0.0

    def next_compute_s(self) -> float:
        """Machine-seconds of the next iteration."""
        noise = self._rng.uniform(-self._noise, self._noise) if self._noise else 0.0
        return self.job.compute_s * (1.0 + noise)


class RunningJob:
    """Takes the steps of a job, as its executors and its `JobMachine` do.

    Args:
        progress: of the job, which goes on.
        machines: by rank.
        is_new: whether it has no checkpoint to start from.
        delays: that pass beside computing and links.
        clock, cohorts: of the simulation.
        network: says when pulls and pushes may begin; None: at once.
        grant: lets jobs use the network.
        warm_up: iterations that are not measured.
        hears: is told what happens.

    Attributes:
        meter: measures its iterations.
        ended_s: times at which its iterations ended.
        began_s: when it was placed.
        loading_s, saving_s: that a start takes here, and a stop.
    """

    def __init__(
        self,
        progress: Progress,
        machines: dict[int, SimulatedMachine],
        is_new: bool,
        delays: SharingDelays,
        clock: Clock,
        cohorts: Cohorts,
        network: NetworkSynchroniser | None,
        grant: Callable[[Sequence[Grant]], None],
        warm_up: int,
        hears: Hears,
    ) -> None:
        self.progress, self._delays, self._clock = progress, delays, clock
        self._cohorts, self._network, self._grant, self._hears = cohorts, network, grant, hears
        self.machines = tuple(machines)
        job, count = progress.job, len(machines)
        self._shares = _shares(job.data_blocks, self.machines)
        self._workers = tuple(rank for rank, share in self._shares.items() if share)
        # Every worker waits for its share from the slowest server, which sends shares to all of them.
        self._bandwidth = min(machine.bandwidth for machine in machines.values())
        dense, sparse = job.pull_bytes(len(self._workers), count)
        self._pull_bytes = dense + sparse
        self._dense_share = dense / self._pull_bytes if self._pull_bytes else 1.0
        self.meter = IterationMeter(self._workers, warm_up)
        self.ended_s: list[float] = []
        self.began_s, self._must_stop = clock.now_s, False
        self.loading_s = delays.start_s + self._disk_s(job.input_bytes + (0.0 if is_new else job.state_bytes))
        self.saving_s = delays.stop_s + self._disk_s(job.state_bytes)
        self._step, self._compute_s = -1, 0.0
        self._turns: dict[int, list[float]] = {}
        self._num_turns = 0

    @property
    def name(self) -> str:
        return self.progress.job.name

    @property
    def is_done(self) -> bool:
        """Whether nothing is left of the job."""
        return self.progress.iterations >= self.progress.job.iterations

    def load(self) -> JobLoad:
        """What has been measured, at least one iteration."""
        average, job = self.meter.average, self.progress.job
        assert average is not None
        return JobLoad(
            name=job.name,
            compute_s=average.compute_s,
            network_s=average.network_s,
            machines=len(self.machines),
            data_blocks=job.data_blocks,
            iterations_left=float(job.iterations - self.progress.iterations),
            dense_share=self._dense_share,
            row_growth=job.row_growth,
            loading_s=self.loading_s,
            saving_s=self.saving_s,
        )

    # ---- start and end -------------------------------------------------------------------------

    def start(self) -> None:
        """Come to the machines: read samples and the checkpoint, and begin."""
        self._cohorts.place(self.name, self._shares)
        if self._network is not None:
            self._network.add(self.name, self._workers, self.machines)
        self._clock.after(self.loading_s, self._begin)

    def _begin(self) -> None:
        self._hears.loaded(self)
        self._go_on()

    def stop(self) -> None:
        """Leave after the iteration that goes on."""
        self._must_stop = True

    def _disk_s(self, num_bytes: float) -> float:
        return num_bytes / len(self.machines) / self._delays.disk_bytes_per_s

    def _go_on(self) -> None:
        """Begin the next iteration, if there is one."""
        if self.is_done:
            self._leave()
        elif not self._must_stop:
            self._clock.after(self._delays.control_s, self._begin_step)
        else:
            self._clock.after(self.saving_s, self._leave)

    def _leave(self) -> None:
        self._cohorts.leave(self.name)
        if self._network is not None:
            self._grant(self._network.remove(self.name))
        self._hears.left(self)

    # ---- steps ---------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        self._step += 1
        self._turns = {}
        self._compute_s = self.progress.next_compute_s()
        for cohort in self._cohorts.of(self.machines):
            cohort.give_ticket(self.name)
        self._ask_network(self._workers)

    def _ask_network(self, ranks: Sequence[int]) -> None:
        if self._network is None:
            self.communicate(ranks)
        else:
            self._clock.after(self._delays.control_s, partial(self._hear_ask, ranks))

    def _hear_ask(self, ranks: Sequence[int]) -> None:
        assert self._network is not None
        grants = [grant for rank in ranks for grant in self._network.ask(self.name, rank, self._step)]
        self._grant(grants)

    def communicate(self, ranks: Sequence[int]) -> None:
        """Pull or push, whatever is next."""
        for cohort in self._cohorts.of(ranks):
            cohort.communicate(self.name, self._pull_bytes / self._bandwidth)

    def has_sent(self, ranks: Sequence[int], seconds: float) -> None:
        """A pull has been answered, or a push been applied."""
        if self._network is not None:
            self._clock.after(self._delays.control_s, partial(self._hear_used, ranks))
        if ranks[0] not in self._turns:
            for rank in ranks:
                self._turns[rank] = [seconds]
            for cohort in self._cohorts.of(ranks):
                cohort.compute(self.name, self._compute_s * self._shares[cohort.ranks[0]])
            return
        turns = [(rank, *self._turns[rank], seconds) for rank in ranks]
        self._clock.after(self._delays.control_s, partial(self._hear_turns, turns))

    def has_computed(self, ranks: Sequence[int], seconds: float) -> None:
        """A CPU subtask is over."""
        for rank in ranks:
            self._turns[rank].append(seconds)
        self._ask_network(ranks)

    def _hear_used(self, ranks: Sequence[int]) -> None:
        assert self._network is not None
        now_s, progress = self._clock.now_s, self.progress
        goes_on = progress.iterations + 1 < progress.job.iterations and not self._must_stop
        for rank in ranks:
            self._grant(self._network.used(self.name, rank, now_s, goes_on=goes_on))
        self._clock.after(KEEP_S, self._release)

    def _release(self) -> None:
        assert self._network is not None
        self._grant(self._network.release(self._clock.now_s))

    def _hear_turns(self, turns: Sequence[tuple[float, ...]]) -> None:
        now_s, num_bytes = self._clock.now_s, round(2 * self._pull_bytes)
        is_over = False
        for rank, pull_s, compute_s, push_s in turns:
            turn = TurnDone(self._step, (), 1, compute_s, pull_s, push_s, num_bytes)
            is_over = self.meter.note(int(rank), turn, now_s)
        self._num_turns += len(turns)
        if self._num_turns < len(self._workers):
            return
        self._num_turns = 0
        self.ended_s.append(now_s)
        self.progress.iterations += 1
        self.progress.compute_s += self._compute_s
        self._hears.iterated(self, is_over)
        self._go_on()


def _shares(num_blocks: int | None, machines: Sequence[int]) -> dict[int, float]:
    """Share of the samples of each machine."""
    if num_blocks is None:
        return dict.fromkeys(machines, 1 / len(machines))
    counts = Counter(dealt_out(num_blocks, machines))
    return {rank: counts[rank] / num_blocks for rank in machines}
