"""Let a job configure itself: from measured turns to a reconfiguration that pays ([PS] Sec. 3.3.1)."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence

from hpcbal.config import ParamServerConfig
from hpcbal.errors import PolicyError
from hpcbal.paramserver.api.batch import DataBlocks
from hpcbal.paramserver.api.update import held_bytes
from hpcbal.paramserver.master.events import BlockMove, Reconfigure
from hpcbal.paramserver.master.job import JobMachine
from hpcbal.paramserver.master.messages import ServerReport, TurnDone
from hpcbal.policies.configuring.changes import BlockAssignment, Move, Plan, plan_changes, renamed
from hpcbal.policies.configuring.cost_model import Configuration, Problem, epoch_cost
from hpcbal.policies.configuring.metrics import (
    Hindsight,
    Metrics,
    ServerMetrics,
    TurnMetrics,
    estimate_machines,
    measured_bandwidth,
)
from hpcbal.policies.configuring.trigger import MovingCost, Trigger, best_within, cost_of_moving, spread
from hpcbal.runtime.jobs.loading import Cut, LoadedJob
from hpcbal.runtime.jobs.needs import sample_job
from hpcbal.telemetry.views.table import count_text

log = logging.getLogger(__name__)

MOST_SKIPS = 16
"""Looks for a better configuration that are skipped at most while nothing changes. Looking may take a second
on many unlike machines, and in `sync` all workers wait meanwhile."""


class Tuner:
    """Watches the turns of a job, and proposes reconfigurations.

    Machine i of the policies is executor i, in order of rank.

    Args:
        config: the job.
        machine: its state machine, which is only looked at.
        num_samples: of the dataset.
        model_bytes: size of all tables.
        data_bytes: size of all samples and their state, about.
        dense_bytes: of the tables that every turn pulls whole; None: all of them.
        row_growth: a turn with n samples needs n ** row_growth as many rows of the other tables as one with a
            single sample, 0 to 1.
        in_use: ranks of the executors that the job may use; None: all.

    Attributes:
        in_use: ranks of those that it may use now.
    """

    def __init__(
        self,
        config: ParamServerConfig,
        machine: JobMachine,
        num_samples: int,
        model_bytes: int,
        data_bytes: int,
        in_use: Collection[int] | None = None,
        dense_bytes: int | None = None,
        row_growth: float = 1.0,
    ) -> None:
        self._dense_bytes = model_bytes if dense_bytes is None else dense_bytes
        self._row_growth = row_growth
        self._config = config
        self._machine = machine
        self._num_samples = num_samples
        self._model_bytes, self._data_bytes = model_bytes, data_bytes
        self._executors = machine.spec.executors
        self._index = {executor: i for i, executor in enumerate(self._executors)}
        self._metrics = Metrics.of(len(self._executors), config.tune.warm_up)
        self._trigger = Trigger(config.tune.min_gain, config.tune.min_turns)
        self._hindsight = Hindsight(num_samples)
        # Before the last change, until that has paid: the configuration, and its epochs as measured.
        self._previous: tuple[Configuration, float] | None = None
        self._is_settled = False  # a change has not paid, so predictions for this job are not to be trusted
        self._looks_to_skip, self._next_skips = 0, 1
        self._last_epoch_s = 0.0  # predicted, when it last looked for something better
        self._has_news = False  # whether turns came since the last look
        self.in_use = tuple(in_use or self._executors)
        self._in_use = frozenset(self._index[executor] for executor in self.in_use)
        self._resources_changed = False

    def follow(self, executors: Sequence[int]) -> bool:
        """Use these executors from now on, and empty the others; returns whether that changes anything."""
        has_changed = tuple(executors) != self.in_use
        if has_changed:
            self.use(executors)
        return has_changed

    def use(self, executors: Collection[int]) -> None:
        """From now on the job has these executors; the others have to be emptied."""
        self.in_use = tuple(executors)
        self._in_use = frozenset(self._index[executor] for executor in executors)
        self._resources_changed = True
        self._previous, self._is_settled = None, False

    def note_turn(self, executor: int, turn: TurnDone, now_s: float) -> None:
        """Count a turn that has ended at a time of any clock, in seconds."""
        self._hindsight.note_turn(executor, turn.samples, now_s)
        # A push overlaps with the next turn, unless that waits until all updates of the step are applied.
        communication_s = turn.pull_s + (turn.push_s if self._config.staleness == 0 else 0.0)
        found = TurnMetrics(turn.samples, turn.compute_s, communication_s, turn.num_bytes)
        self._metrics = self._metrics.after_turn(self._index[executor], found)
        self._has_news = True

    def note_report(self, executor: int, report: ServerReport) -> None:
        """Count what a server has done."""
        found = ServerMetrics(report.bytes_in + report.bytes_out, report.service_s)
        self._metrics = self._metrics.after_period(self._index[executor], found)

    def note_epoch(self, now_s: float) -> None:
        """An epoch has ended."""
        self._hindsight.note_epoch(now_s)

    def note_change(self) -> None:
        """A reconfiguration is over: measure anew what depends on the configuration."""
        self._metrics = self._metrics.after_change()
        self._hindsight.restart()

    def propose(self) -> Reconfigure | None:
        """A reconfiguration that is predicted to pay, or that cannot wait; None if there is none.

        Executors that the job has lost are emptied at once. Otherwise enough turns must be measured.
        """
        tune, machine = self._config.tune, self._machine
        is_due = self._resources_changed or (self._has_news and tune.enabled)
        if not is_due or not machine.can_reconfigure:
            return None
        self._has_news = False
        try:
            now = self._ownership()
            current = now.configuration
            if self._resources_changed:
                change = self._change_of_resources(now, current)
            else:
                if not self._trigger.is_due(self._metrics, current):
                    return None
                change = self._change_for_gain(now, current)
        except PolicyError as error:  # an executor works and serves, or nothing fits
            if self._resources_changed:
                log.warning("executors changed, but blocks stay where they are: %s", error)
                self._resources_changed = False
            return None
        self._metrics = self._metrics.after_change()
        return change

    def _change_for_gain(self, now: BlockAssignment, current: Configuration) -> Reconfigure | None:
        """Back to the configuration of before, if the last change has not paid; otherwise to a better one."""
        epoch_s = self._hindsight.epoch_s
        if self._previous is not None and epoch_s is not None:
            previous, before_s = self._previous
            self._previous = None
            back = self._way_back(now, current, epoch_s, previous, before_s)
            if back is not None:
                self._is_settled = True
                return back
        if self._is_settled or self._may_skip(current):
            return None
        began_s = time.perf_counter()
        change = self._best_change(now, current, ())
        log.debug("looked for a better configuration for %.3f s", time.perf_counter() - began_s)
        if change is None:
            self._next_skips = min(2 * self._next_skips, MOST_SKIPS)
            self._looks_to_skip = self._next_skips
        else:
            self._looks_to_skip, self._next_skips = 0, 1
            measured_s = self._hindsight.roughly_s
            if measured_s is not None and (self._previous is None or measured_s < self._previous[1]):
                self._previous = current, measured_s
        return change

    def _may_skip(self, current: Configuration) -> bool:
        """Whether to look later: there was nothing better the last time, and nothing has changed since."""
        epoch_s = epoch_cost(self._problem(current), current).epoch_s
        if self._looks_to_skip and abs(epoch_s - self._last_epoch_s) <= self._trigger.min_gain * epoch_s:
            self._looks_to_skip -= 1
            return True
        self._last_epoch_s = epoch_s
        return False

    def _way_back(
        self,
        now: BlockAssignment,
        current: Configuration,
        epoch_s: float,
        previous: Configuration,
        before_s: float,
    ) -> Reconfigure | None:
        """The way to an earlier configuration, if its epochs were shorter by so much that it pays."""
        problem = self._problem(current)
        plan = plan_changes(now, previous)
        moving = self._cost_of(plan, problem, current)
        decision = self._trigger.decide(epoch_s, before_s, moving, self._epochs_left)
        if not decision.change or not plan.moves:
            return None
        longer = 100 * (epoch_s / before_s - 1)
        why = f"epochs took {longer:.0f} % longer since the last change"
        return self._request(plan, previous, why, None)

    @property
    def _epochs_left(self) -> float:
        return float(self._machine.spec.pace.max_epochs - self._machine.epochs)

    def _cost_of(self, plan: Plan, problem: Problem, current: Configuration) -> MovingCost:
        return cost_of_moving(
            plan,
            problem.machines,
            self._data_bytes / problem.num_data_blocks,
            self._model_bytes / problem.num_parameter_blocks,
            epoch_cost(problem, current).link_share,
        )

    def _change_of_resources(self, now: BlockAssignment, current: Configuration) -> Reconfigure | None:
        """Return a change for executors that came or went; None if there is none."""
        leaving = [i for i in (*current.workers, *current.servers) if i not in self._in_use]
        change, has_tried = None, False
        if self._config.tune.enabled and self._is_measured(current):
            try:
                change, has_tried = self._best_change(now, current, leaving), True
            except PolicyError as error:  # such as roles that would be exchanged without a way round
                log.info("the best configuration without %s cannot be reached: %s", leaving, error)
        if not has_tried and (leaving or not self._config.tune.enabled):
            wanted = spread(current, self._in_use)
            self._check_memory(wanted)
            plan = plan_changes(now, wanted)
            change = self._request(plan, wanted, "executors changed", None) if plan.moves else None
        # Otherwise what has come is used once turns are measured. Moves may be cut short by a pause.
        self._resources_changed = change is not None
        return change

    def _check_memory(self, wanted: Configuration) -> None:
        """Check that executors have room for their blocks and the dense tables that workers keep.

        Raises:
            PolicyError: one has not.
        """
        limit = self._config.memory_per_rank
        if limit is None:
            return
        data_bytes = self._data_bytes / sum(wanted.data_blocks)
        held = held_bytes(self._model_bytes, self._config.staleness) / sum(wanted.parameter_blocks)
        for i, (data, parameters) in enumerate(zip(wanted.data_blocks, wanted.parameter_blocks, strict=True)):
            needed = data * data_bytes + parameters * held + (self._dense_bytes if data else 0)
            if needed > limit:
                raise PolicyError(
                    f"memory_per_rank: got {limit:,} bytes, but rank {self._executors[i]} would hold "
                    f"{needed:,.0f}; use more executors, or allow more memory"
                )

    def _is_measured(self, current: Configuration) -> bool:
        """Whether anything can be predicted from this configuration."""
        return all(self._metrics.executors[i].communication_s.number for i in current.workers)

    def _best_change(
        self, now: BlockAssignment, current: Configuration, leaving: Sequence[int]
    ) -> Reconfigure | None:
        problem = self._problem(current)
        machines = problem.machines
        wanted = best_within(problem, self._in_use)
        away = [i for i in range(len(machines)) if i not in self._in_use]
        wanted = renamed(current, wanted, machines, away)
        plan = plan_changes(now, wanted)
        moving = self._cost_of(plan, problem, current)
        before_s, after_s = (epoch_cost(problem, each).epoch_s for each in (current, wanted))
        decision = self._trigger.decide(
            before_s, after_s, moving, self._epochs_left, self._resources_changed, leaving
        )
        if not decision.change or not plan.moves:
            return None
        if decision.reason == "forced":
            return self._request(plan, wanted, "executors were taken back", None)
        why = f"predicted to save {100 * decision.gain:.0f} % of an epoch"
        return self._request(plan, wanted, why, decision.gain)

    def _request(self, plan: Plan, wanted: Configuration, why: str, gain: float | None) -> Reconfigure:
        counts = f"{count_text(len(wanted.workers), 'worker')}, {count_text(len(wanted.servers), 'server')}"
        return Reconfigure(moves_of(plan, self._executors), f"{counts}: {why}", gain)

    def _ownership(self) -> BlockAssignment:
        data = tuple(self._index[owner] for owner in self._machine.owners("data"))
        parameters = tuple(self._index[owner] for owner in self._machine.owners("parameters"))
        of_data, of_parameters = Counter(data), Counter(parameters)
        counts = (
            [of_data[i] for i in self._index.values()],
            [of_parameters[i] for i in self._index.values()],
        )
        if any(works and serves for works, serves in zip(*counts, strict=True)):
            raise PolicyError("an executor works and serves")
        return BlockAssignment(Configuration.of_blocks(*counts).roles, data, parameters)

    def _problem(self, current: Configuration) -> Problem:
        found = [self._metrics.executors[i] for i in current.workers]
        bytes_per_turn = max(1.0, sum(each.turn_bytes.value for each in found) / len(found))
        largest = max(current.parameter_blocks) / sum(current.parameter_blocks)
        communication_s = sum(each.communication_s.value for each in found) / len(found)
        turn_samples = self._config.mini_batch / (1 if self._config.staleness is None else len(found))
        compute_s = turn_samples * sum(each.seconds_per_sample.value for each in found) / len(found)
        # Around turns of the present size, rows of sparse tables grow in a straight line.
        rows_bytes = max(0.0, bytes_per_turn - 2 * self._dense_bytes)
        per_sample = self._row_growth * rows_bytes / turn_samples
        fixed = bytes_per_turn - per_sample * turn_samples
        measured = measured_bandwidth(
            bytes_per_turn,
            len(found),
            largest,
            communication_s,
            compute_s,
            self._config.staleness == 0,
            self._config.link_model,
        )
        emulated = [self._config.machine_of(i) for i in range(len(self._executors))]
        limit = self._config.memory_per_rank
        return Problem(
            machines=estimate_machines(
                self._metrics,
                [measured if each is None or each.bandwidth is None else each.bandwidth for each in emulated],
                [0 if each is None else self._config.machines.index(each) for each in emulated],
                None if limit is None else dict.fromkeys(range(len(emulated)), float(limit)),
            ),
            num_samples=self._num_samples,
            num_data_blocks=sum(current.data_blocks),
            num_parameter_blocks=sum(current.parameter_blocks),
            mini_batch=self._config.mini_batch,
            turns="per_worker" if self._config.staleness is None else "shared",
            pull_bytes=fixed / 2,
            push_bytes=fixed / 2,
            pull_bytes_per_sample=per_sample / 2,
            push_bytes_per_sample=per_sample / 2,
            has_barrier=self._config.staleness == 0,
            model_bytes=held_bytes(self._model_bytes, self._config.staleness),
            sample_bytes=self._data_bytes / self._num_samples,
            links=self._config.link_model,
        )


def tuner_of(
    config: ParamServerConfig, machine: JobMachine, loaded: LoadedJob, cut: Cut, in_use: Collection[int]
) -> Tuner:
    """Return the tuner of a job.

    Args:
        config: of the job.
        machine: its state machine, which is only looked at.
        loaded: its app and data.
        cut: of its samples and tables.
        in_use: ranks of the executors that the job may use.

    Raises:
        UserCodeError: the app or its dataset raises.
        AppError: they return something that they must not.
    """
    some = DataBlocks(loaded.num_samples, cut.data).samples(0)
    return Tuner(
        config,
        machine,
        loaded.num_samples,
        loaded.parameter_bytes,
        loaded.data_bytes(some),
        in_use,
        loaded.dense_bytes,
        sample_job(loaded, config.seed).row_growth,
    )


def moves_of(plan: Plan, executors: Sequence[int]) -> tuple[BlockMove, ...]:
    """The moves of a plan for the job's machine, where what an executor owns is its role.

    Other operations are nothing but an order among moves.

    Args:
        plan: of machines 0, 1, ...
        executors: their ranks.
    """
    number: dict[int, int] = {}  # of each move among the moves
    before: list[frozenset[int]] = []  # moves that each operation waits for
    moves: list[BlockMove] = []
    for i, operation in enumerate(plan.operations):
        needed = frozenset[int]().union(
            *(frozenset({number[j]}) if j in number else before[j] for j in plan.after[i])
        )
        before.append(needed)
        if isinstance(operation, Move):
            number[i] = len(moves)
            source, destination = executors[operation.source], executors[operation.destination]
            moves.append(
                BlockMove(operation.what, operation.blocks, source, destination, tuple(sorted(needed)))
            )
    return tuple(moves)
