"""Rank 0: turns messages into events, lets the state machine decide, and performs its instructions.

A thread chooses schedules meanwhile, so that rank 0 goes on to serve the other ranks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.cluster.walltime import WalltimeLimit
from hpcbal.comm.backoff import Backoff
from hpcbal.comm.channel import Message
from hpcbal.config.scheduling import specs_of
from hpcbal.control.ensemble import Ensemble
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.errors import LAST_OUTCOMES, HpcbalError, OutputError, code_of_end
from hpcbal.events.ensemble import (
    ChooseSchedule,
    DnnFailed,
    Event,
    Finish,
    GroupLeft,
    GroupPlan,
    Instruction,
    LeaveOut,
    LeaveRound,
    NextPass,
    PreprocessingMeasured,
    ProposeDnns,
    RoundPlan,
    ScheduleChosen,
    Started,
    StartGroup,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.events.members import DnnAdded, SearchEnded, StopAsked
from hpcbal.runtime.handoff.start_file import StarterWatch, StartFile
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.record.accounts import PreprocessingStats
from hpcbal.runtime.record.console import Console
from hpcbal.runtime.record.forecast import Forecaster, passes_of
from hpcbal.runtime.record.journal import Journal
from hpcbal.runtime.record.requests import Requests
from hpcbal.runtime.wire import protocol
from hpcbal.simulator.choosing import ASSUMED_COSTS, Outset, choose_schedule
from hpcbal.telemetry.ledger.dnn_lines import BadSampleLine

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
"""Between looks for what the user asks of the run."""

AFTER_ERROR_S = 60.0
"""Until the next look if one has failed."""


class ScheduleChooser:
    """Answers one question of the state machine at a time, from a thread.

    The answer depends only on the state of the ensemble, never on how long it took.

    Args:
        spec: the shared stream.
        choose: finds the answer; replaced by tests.
        hit_rate: see `RankData`.
    """

    def __init__(
        self,
        spec: StreamSpec,
        choose: Callable[[Outset, ChooseSchedule], ScheduleChosen] = choose_schedule,
        hit_rate: float = 0.0,
    ) -> None:
        self._passes = passes_of(spec, hit_rate)
        self._choose = choose
        self._answer: Future[ScheduleChosen] | None = None

    def ask(self, asked: ChooseSchedule, ensemble: Ensemble, start_s: Mapping[str, float]) -> None:
        """Start to look for the answer.

        Args:
            start_s: seconds that it takes to start a DNN on a rank that does not hold it yet, by DNN, if
                known.
        """
        outset = Outset.of(ensemble, self._passes, replace(ASSUMED_COSTS, start_s=start_s))
        answer: Future[ScheduleChosen] = Future()

        def look() -> None:
            try:
                answer.set_result(self._choose(outset, asked))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=look, name="schedule-chooser", daemon=True).start()
        self._answer = answer

    def take(self) -> ScheduleChosen | None:
        """Return the answer once it is found; None before, and after it was taken.

        Raises:
            HpcbalError: if the search has failed.
        """
        if self._answer is None or not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        return answer.result()


class Scheduler:
    """Performs what `control.Ensemble` decides.

    Events that arrive while an instruction waits for answers are queued, so that the state machine handles
    all events one by one, in the order of arrival.

    Args:
        context: the context of rank 0.
        spec: the shared stream.
        ensemble: the state machine, which makes the decisions.
        journal: publishes what happens.
        console: prints what only a real run has to say.
        started_s: when this start began, in seconds since the Unix epoch; the walltime counts from then.
        backoff: makes the backoff of one wait for messages.
        hit_rate: see `RankData`.
        chooser: chooses schedules; None: by prediction.
        requests: what the user asks of the run; None: nothing.
        misfits: why DNNs that have joined before this start cannot train, by name: each of them fails.
    """

    def __init__(
        self,
        context: RankContext,
        spec: StreamSpec,
        ensemble: Ensemble,
        journal: Journal,
        console: Console,
        *,
        started_s: float,
        hit_rate: float = 0.0,
        backoff: Callable[[], Backoff] = Backoff.idle,
        chooser: ScheduleChooser | None = None,
        requests: Requests | None = None,
        misfits: Mapping[str, str] | None = None,
    ) -> None:
        self._context = context
        self._spec = spec
        self._make_backoff = backoff
        self._roles = context.roles
        self._ensemble = ensemble
        self._journal = journal
        self._console = console
        self._events: deque[Event] = deque()
        self._serial = 0
        self._groups: dict[str, GroupPlan] = {}
        self._serial_of: dict[str, int] = {}
        self._compiled: set[str] = set()  # what people know of
        self._ready: set[int] = set()
        self._stopped: set[int] = set()
        self._stream_open = self._fills_caches = False
        self._is_stopping = False
        self._preprocessing = PreprocessingStats(context.config.data.max_bad_fraction)
        self._has_folds = context.config.num_folds > 0  # then a pass has the training samples twice
        self._stall = context.stall_detector()
        self._walltime = WalltimeLimit.of_job(context.config.walltime, started_s)
        self._start = StartFile.of_rank()
        self._starter = StarterWatch(self._start)
        self._forecast = Forecaster(spec, hit_rate)
        self._chooser = chooser or ScheduleChooser(spec, hit_rate=hit_rate)
        self._asked_s = 0.0
        self._requests = requests
        self._misfits = misfits or {}
        self._joined: dict[str, protocol.Joined] = {}
        self._look_due_s = 0.0
        self._fatal: HpcbalError | None = None
        self._exit_code: int | None = None
        self._outcome = ""

    def run(self) -> int:
        """Work until the ensemble is finished; returns the exit code after sending it to all ranks."""
        for name, problem in self._misfits.items():
            self._happen(DnnFailed(name, "error", problem))
        self._happen(Started())
        while self._exit_code is None:
            self._await(lambda: bool(self._events))
            self._handle(self._events.popleft())
        table = self._journal.finish(self._preprocessing, self._outcome, self._exit_code)
        self._send_to_all(protocol.Shutdown(self._exit_code))
        self._context.channel.flush()
        self._console.show_end(table, self._fatal)
        return self._exit_code

    # ---- events in ---------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        """Publish an event now, because times count, and queue it for the state machine."""
        log.debug("%r", event)
        self._journal.publish(event)
        self._events.append(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, GroupLeft):
            del self._groups[event.dnn_id]
        live = self._ensemble.state.live
        live_before = list(live)
        began = time.monotonic()
        instructions = self._ensemble.handle(event)
        self._journal.note_decision(began, time.monotonic() - began)
        self._journal.publish_ended([name for name in live_before if name not in live])
        for instruction in map(self._checked, instructions):
            log.debug("%r", instruction)
            self._journal.publish(instruction)
            self._perform(instruction)
        if any(isinstance(instruction, StartRound | StartGroup) for instruction in instructions):
            self._forecast.ask(self._ensemble, self._journal.start_s)
        if any(isinstance(instruction, StartRound | NextPass) for instruction in instructions):
            idle = self._ensemble.idle_slots()
            if idle is not None:
                self._journal.publish(idle)

    def _await(self, condition: Callable[[], bool]) -> None:
        """Receive messages until `condition` holds, and look at the clocks; queue events."""
        backoff = self._make_backoff()
        while not condition():
            found = self._context.channel.receive()
            if found is not None:
                self._take(*found)
                backoff.reset()
                if not self._stall.is_due():
                    continue
            self._look_at_clocks()
            backoff.wait()

    def _look_at_clocks(self) -> None:
        reason = self._context.stop.take() or self._walltime.reached() or self._starter.lost()
        if reason is not None and not self._context.is_ending():
            self._request_stop(reason)
        self._stall.check()
        self._look_for_requests()
        choice = self._chooser.take()
        if choice is not None:
            self._journal.note_decision(self._asked_s, time.monotonic() - self._asked_s)
            self._happen(choice)
        prediction = self._forecast.take()
        if prediction is not None and self._journal.note_prediction(prediction):
            self._console.note(prediction.line())
        self._journal.heartbeat(self._preprocessing)

    def _look_for_requests(self) -> None:
        """Look for what the user asks of the run, every `LOOK_INTERVAL_S`."""
        now_s = time.monotonic()
        if self._requests is None or now_s < self._look_due_s or self._is_stopping:
            return  # the next start finds what comes while this one stops
        self._look_due_s = now_s + LOOK_INTERVAL_S
        try:
            for joined in self._requests.joined(self._console.warn):
                self._admit(joined, self._requests)
            names = self._requests.to_stop()
        except OutputError as error:  # perhaps a file system that answers again
            self._look_due_s = now_s + AFTER_ERROR_S
            self._console.warn(f"requests cannot be read, and are looked for again: {error}")
            return
        if names:
            self._happen(StopAsked(names))

    def _admit(self, joined: protocol.Joined, requests: Requests) -> None:
        """Let a DNN join; one that no round can take joins too, and fails."""
        name, problem, rates = joined.dnn.name, "", dict[int, float]()
        self._joined[name] = joined
        try:
            rates |= requests.rates_of(name)
            requests.check_fits(joined.dnn)
        except HpcbalError as error:
            problem = str(error)
        spec = next(each for each in specs_of(requests.config) if each.dnn_id == name)
        self._happen(DnnAdded(spec, rates, joined.drawn))
        if problem:
            self._happen(DnnFailed(name, "error", problem))

    def _propose(self, number: int) -> None:
        """Let DNNs of searches join."""
        assert self._requests is not None, "only a run with a directory has searches"
        began_s = time.monotonic()
        try:
            for joined in self._requests.propose(number, self._console.warn):
                self._admit(joined, self._requests)
        except HpcbalError as error:
            self._happen(SearchEnded(str(error)))
        self._journal.note_decision(began_s, time.monotonic() - began_s)

    def _joined_of(self, groups: Sequence[GroupPlan]) -> tuple[protocol.Joined, ...]:
        return tuple(self._joined[group.dnn_id] for group in groups if group.dnn_id in self._joined)

    def _take(self, source: int, message: Message) -> None:
        self._stall.heard_of(source, message)
        match message:
            case protocol.Happened():
                self._take_event(message)
            case protocol.ReaderReady():
                self._ready.add(source)
            case protocol.StreamEnded():
                self._stopped.add(source)
            case protocol.PreprocessorReport():
                self._take_report(source, message)
            case protocol.StopRequest():
                if not self._context.is_ending():
                    self._request_stop(message.reason)
            case protocol.DataLoading():
                self._console.note_loading(message.dnn_id, message.what)
            case protocol.Noted():
                self._journal.publish(message.line)
            case protocol.TimelinePart():
                self._journal.note_slices(source, message.slices)
            case protocol.Heartbeat(doing):
                if doing.startswith(protocol.COMPILING) and doing not in self._compiled:
                    self._compiled.add(doing)
                    self._console.note(f"{doing} (torch.compile), which may take minutes")
            case _:
                raise TypeError(f"the scheduler got {message!r} from rank {source}")

    def _take_event(self, message: protocol.Happened) -> None:
        expected = self._serial_of.get(getattr(message.event, "dnn_id", ""))
        if message.serial != expected:
            raise RuntimeError(
                f"got an event of groups {message.serial}, but the current groups are {expected}: {message}"
            )
        self._happen(message.event)

    def _take_report(self, source: int, report: protocol.PreprocessorReport) -> None:
        for broken in self._preprocessing.add(source, report):
            self._journal.publish(BadSampleLine(*broken))
        if report.warning:
            self._console.warn(f"{self._roles.ranks[source].host}: {report.warning}")
        rate = self._preprocessing.new_rate()
        if rate is not None:
            self._happen(PreprocessingMeasured(rate))
        num_samples = self._spec.num_positions - (self._spec.num_train if self._has_folds else 0)
        if self._fatal is None and self._preprocessing.too_many_bad(num_samples):
            self._fatal = self._preprocessing.error(num_samples)
            self._console.note_error()
            self._suspend("too many broken samples")

    def _request_stop(self, reason: str) -> None:
        """Stop cleanly, because of a signal, the walltime, or the end of `hpcbal run`."""
        self._suspend(reason)
        self._start.hint(is_stopping=True)

    def _suspend(self, reason: str) -> None:
        """Request a clean stop once: a launcher passes a signal on to every rank, and each reports it."""
        if not self._is_stopping:
            self._is_stopping = True
            self._stall.hasten(reason)
            self._happen(SuspendRequested(reason))

    # ---- instructions out --------------------------------------------------------------------

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case StartProfiling(groups):
                self._open(groups, None)
            case ChooseSchedule():
                self._asked_s = time.monotonic()
                self._chooser.ask(instruction, self._ensemble, self._journal.start_s)
            case ProposeDnns(number):
                self._propose(number)
            case StartRound(plan):
                self._open(plan.groups, plan)
            case StartGroup(plan):
                self._start_group(plan)
            case NextPass():
                for dnn_id in instruction.dnn_ids:
                    serial, checkpoint = self._serial_of[dnn_id], dnn_id in instruction.checkpoint
                    self._send_to_group(dnn_id, protocol.Proceed(serial, instruction.pass_index, checkpoint))
            case LeaveRound(dnn_id, reason):
                self._send_to_group(dnn_id, protocol.Leave(self._serial_of[dnn_id], reason))
            case SuspendGroups():
                for dnn_id in instruction.dnn_ids:
                    self._send_to_group(dnn_id, protocol.Suspend(self._serial_of[dnn_id]))
            case LeaveOut():
                pass  # the journal records it; the groups get an order when the pass ends
            case StopStream():
                self._end_stream()
            case Finish():
                self._finish(instruction.outcome)
            case _:
                raise TypeError(f"the state machine gave {instruction!r}")

    def _open(self, groups: Sequence[GroupPlan], plan: RoundPlan | None) -> None:
        """Form `groups`, wait until all readers are positioned, then start the stream."""
        self._end_stream()
        self._serial += 1
        stream = self._plan_stream(groups, plan)
        self._groups = {group.dnn_id: group for group in groups}
        self._serial_of = dict.fromkeys(self._groups, self._serial)
        self._ready.clear()
        order = protocol.OpenGroups(self._serial, tuple(groups), stream, plan, self._joined_of(groups))
        self._context.channel.send_to_all(self._roles.trainer_ranks, order)
        self._await(lambda: len(self._ready) == len(self._roles.trainer_ranks))
        self._send_to_preprocessors(protocol.StartStream(stream))
        self._stream_open = True

    def _start_group(self, plan: RoundPlan) -> None:
        """Let the trainers of one group train one DNN; preprocessors put samples into the caches for it.

        With the first group, all trainers open the dataset: later it may be another one.
        """
        (group,) = plan.groups
        if not self._fills_caches:
            self._context.channel.send_to_all(self._roles.trainer_ranks, protocol.OpenData())
            self._fills_caches = self._stream_open = True  # its end brings their last reports
            self._send_to_preprocessors(protocol.FillCache(plan.first_pass))
        self._serial += 1
        self._groups[group.dnn_id] = group
        self._serial_of[group.dnn_id] = self._serial
        self._send_to_group(
            group.dnn_id, protocol.FormGroup(self._serial, plan, self._joined_of(plan.groups))
        )

    def _plan_stream(self, groups: Sequence[GroupPlan], plan: RoundPlan | None) -> StreamPlan:
        node_of_slot = self._roles.cluster.node_of_slots()
        producers = self._roles.preprocessor_ranks
        offset, first_pass = 0, 0
        if plan is not None:
            producers = producers[: plan.num_preprocessors]
            first_pass = plan.first_pass
            starts = [plan.start[group.dnn_id] for group in groups]
            offset = min(start.offset for start in starts if start.pass_index == first_pass)
        return StreamPlan(
            generation=self._serial,
            first_pass=first_pass,
            first_block=offset // self._spec.block_samples,
            producers=producers,
            training_nodes=tuple(sorted({node_of_slot[j] for group in groups for j in group.slots})),
        )

    def _end_stream(self) -> None:
        """Stop the preprocessors and wait until no block of their stream is in transit."""
        if not self._stream_open:
            return
        self._stopped.clear()
        self._send_to_preprocessors(protocol.EndStream(self._serial))
        self._await(lambda: len(self._stopped) == len(self._roles.preprocessor_ranks))
        self._stream_open = False

    def _checked(self, instruction: Instruction) -> Instruction:
        """Return the instruction; but a run is not over whose weights are gone, and is suspended instead."""
        if not isinstance(instruction, Finish):
            return instruction
        lost = self._journal.check_kept()
        if lost is None or instruction.outcome not in LAST_OUTCOMES:
            return instruction
        self._fatal = lost
        self._console.note_error()
        return Finish("suspended")

    def _finish(self, outcome: str) -> None:
        self._end_stream()
        self._outcome = outcome
        self._exit_code = code_of_end(outcome, self._fatal)

    def _send_to_group(self, dnn_id: str, message: Message) -> None:
        ranks = [self._roles.trainer_ranks[slot] for slot in self._groups[dnn_id].slots]
        self._context.channel.send_to_all(ranks, message)

    def _send_to_preprocessors(self, message: Message) -> None:
        self._context.channel.send_to_all(self._roles.preprocessor_ranks, message)

    def _send_to_all(self, message: Message) -> None:
        others = [rank for rank in range(self._context.channel.size) if rank != SCHEDULER_RANK]
        self._context.channel.send_to_all(others, message)
