"""The life of an executor, written once: orders, turns, objectives and blocks that leave.

A `Worker` does no IO and knows no clock. `life` is a generator: it yields conditions that it waits for, and
its `Hands` perform what it decides: over MPI (`engine`), in virtual time (`simulator.paramserver`), or in one
process (`alone`). Whoever drives it goes on when a condition holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Never, TypeVar

from hpcbal.comm.channel import Message
from hpcbal.errors import HpcbalError
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.messages import Report, TurnDone
from hpcbal.paramserver.worker.data_moves import DataMoves
from hpcbal.paramserver.worker.resources import Resources, Waits
from hpcbal.paramserver.worker.samples import MAX_OPEN_TURNS, OpenTurns, Turn, WorkerSamples

BEFORE_ALL_STEPS = -1
"""Step of what is pushed before the first epoch."""

W = TypeVar("W")
"""The wish of a turn, or of data blocks whose objective is computed: samples, and ids of rows."""
V = TypeVar("V")
"""Values that were pulled."""
U = TypeVar("U")
"""Updates of a turn."""
B = TypeVar("B")
"""A data block whose terms of the objective are computed."""


class Hands(ABC, Generic[W, V, U, B]):
    """Performs what a worker decides."""

    @property
    @abstractmethod
    def now_s(self) -> float:
        """Seconds since some time in the past."""

    @property
    @abstractmethod
    def worker_bytes(self) -> int:
        """Bytes of pulls and pushes so far, and of the values that have come, from and to other ranks."""

    @property
    @abstractmethod
    def num_unapplied(self) -> int:
        """Pushes that are not applied in full."""

    @property
    def failure(self) -> HpcbalError | None:
        """The error that ended something while this executor served others."""
        return None

    def during(self, kind: str) -> AbstractContextManager[None]:
        """Return a context for something that is not part of a turn, such as `load`; a trace shows it."""
        return nullcontext()

    # Orders.

    @abstractmethod
    def load(self, order: messages.Assign) -> Waits[None]:
        """Make the executor's blocks, or load them from a checkpoint."""

    def save(self, number: int) -> Waits[None]:
        """Write them into a checkpoint."""
        raise _not_here(self)

    # Parameter blocks that move, where there are servers.

    @property
    def server_is_quiet(self) -> bool:
        """Whether no parameter block is on its way from here."""
        return True

    def change_owner(self, blocks: Sequence[int], owner: int) -> None:
        """Ask another rank for parameter blocks from now on."""
        raise _not_here(self)

    def move_parameters(self, blocks: tuple[int, ...], destination: int) -> None:
        """Give parameter blocks away, one after the other."""
        raise _not_here(self)

    def hold_parameters(self) -> None:
        """Give no more of them away until `go_on`."""

    def go_on(self) -> None:
        """The job goes on after a pause."""

    # Turns.

    @abstractmethod
    def gather(self, turn: Turn) -> W:
        """Put the samples of a turn together."""

    @abstractmethod
    def pull(self, wanted: W, step: int, share: int, *, keeps_dense: bool = False) -> Waits[V]:
        """Pull all dense tables and some rows; over when the last push has left as well.

        Args:
            wanted: says which rows.
            step: of the turn, over the whole job; in `sync`, values are those before it.
            share: data blocks that take the turn; 0: it is for an objective.
            keeps_dense: whether dense tables stay as the last pull has left them.
        """

    @abstractmethod
    def compute(self, turn: Turn, wanted: W, values: V) -> Waits[tuple[U, float]]:
        """Compute the updates of a turn; returns them, and how many seconds it took."""

    @abstractmethod
    def push(self, updates: U, step: int, applied: Callable[[], None]) -> Waits[None]:
        """Push updates once earlier ones have left; `applied` is called when they are in the values."""

    # Outside of turns.

    @abstractmethod
    def first_blocks(self) -> Iterator[Callable[[], U | None]]:
        """Yield a function for each data block that pushes before the first epoch; it computes the updates.

        It returns those to push now, maybe of several blocks; None: none yet.
        """

    @abstractmethod
    def first_updates_left(self) -> U | None:
        """Updates of the last of these blocks that are not pushed yet."""

    @abstractmethod
    def evaluated_together(self, numbers: Sequence[int], epoch: int) -> Iterable[tuple[W, Iterable[B]]]:
        """Cut data blocks into those whose objectives need one pull: what it pulls, and the blocks."""

    @abstractmethod
    def objective(self, block: B, values: V) -> tuple[int, Callable[[], Mapping[str, float]]]:
        """Return the number of a data block, and what computes its terms of the objective."""

    def begin_terms(
        self, compute: Callable[[], Mapping[str, float]]
    ) -> Callable[[], Mapping[str, float] | None]:
        """Begin to compute terms of data, from `objective`.

        Returns: what gives them; as long as they are not there, None. After `drop`, nobody waits for them.
        """
        terms = compute()
        return lambda: terms

    def listen(self) -> None:
        """Hear what has come, between two data blocks of an objective; nothing waits for it."""

    @abstractmethod
    def drop(self) -> None:
        """The rows of the last pull are not needed any more."""

    @abstractmethod
    def parameter_objectives(self, epoch: int) -> Iterator[tuple[int, Callable[[], Mapping[str, float]]]]:
        """Yield each parameter block here that has no terms after `epoch` yet, and what computes them."""


class Worker(Generic[W, V, U, B]):
    """One executor of a job, from `Assign` until whoever drives it ends it.

    What it owns makes it a worker, a server, both or a spare.

    Args:
        steps: of an epoch; None: `async`, whose turns follow no steps.
        samples: its data blocks.
        hands: perform what it decides.
        resources: says when each subtask of a turn may start.
        report: sends a report to the master.
        moves_of: makes what decides when data blocks leave, given the turns that are open; None: none do.

    Attributes:
        samples: see above.
    """

    def __init__(
        self,
        steps: int | None,
        samples: WorkerSamples,
        hands: Hands[W, V, U, B],
        resources: Resources,
        report: Callable[[Report], None],
        moves_of: Callable[[OpenTurns], DataMoves] | None = None,
    ) -> None:
        self._steps, self.samples, self._hands, self._resources = steps, samples, hands, resources
        self._report = report
        self._open_turns = OpenTurns(report)
        self._moves = None if moves_of is None else moves_of(self._open_turns)
        self._orders: deque[Message] = deque()  # that wait until the turn is over
        self._limit = self._evaluating = 0
        self._must_evaluate = False
        self._is_paused = True

    def hear(self, message: Message) -> None:
        """Note an order of the master; what concerns turns is done between two of them."""
        match message:
            case messages.MayStart(limit):
                self._limit = limit
            case messages.Evaluate(epoch):
                self._evaluating, self._must_evaluate = epoch, True
            case messages.OwnerChanged(blocks, owner):
                self._hands.change_owner(blocks, owner)
            case messages.MoveBlocks("parameters", blocks, destination):
                self._hands.move_parameters(blocks, destination)
            case messages.MoveBlocks("data", blocks, destination):
                if self._moves is None:
                    raise _not_here(self._hands)
                self._moves.move(blocks, destination)
            case _:
                self._orders.append(message)

    def block_came(self) -> None:
        """A block has come: if an objective is being computed, it may be missing there."""
        self._must_evaluate = self._evaluating > 0

    # The loop.

    def life(self) -> Waits[Never]:
        """Do what is to be done, for ever; yields conditions, and goes on when they hold.

        Raises:
            HpcbalError: what the hands raise, or have failed in while they served others.
        """
        while True:
            if self._hands.failure is not None:
                raise self._hands.failure
            if self._orders:
                yield from self._obey(self._orders.popleft())
            elif self._moves is not None and self._moves.has_ready:
                self._moves.give_ready()
            elif self._must_evaluate:
                with self._hands.during("objective"):
                    yield from self._evaluate()
            elif (turn := self._next_turn()) is not None:
                yield from self._take(turn)
            else:
                yield self._has_work

    def _has_work(self) -> bool:
        return (
            bool(self._orders)
            or self._hands.failure is not None
            or (self._moves is not None and self._moves.has_ready)
            or self._must_evaluate
            or self._next_turn() is not None
        )

    def _next_turn(self) -> Turn | None:
        if self._is_paused or len(self._open_turns) >= MAX_OPEN_TURNS:
            return None
        return self.samples.next_turn(self.samples.limit_within(self._limit))

    def _obey(self, order: Message) -> Waits[None]:
        hands = self._hands
        match order:
            case messages.Assign():
                with hands.during("load"):
                    yield from hands.load(order)
                self._is_paused = order.saved is None
                self._report(messages.Ready(self.samples.steps_ahead()))
            case messages.Initialise():
                with hands.during("initialise"):
                    yield from self._initialise()
                self._is_paused = False
                self._report(messages.Initialised())
            case messages.Pause():
                self._evaluating, self._must_evaluate = 0, False  # see `_is_given_up`
                yield lambda: not self._open_turns
                yield from self.hold_moves()
                self._is_paused = True
                self._report(messages.Paused(self.samples.steps_ahead()))
            case messages.Save(number):
                with hands.during("checkpoint"):
                    yield from hands.save(number)
                self._report(messages.Saved(number))
            case messages.Continue():
                hands.go_on()
                self._is_paused = False
                if self._moves is not None:
                    self._moves.go_on()
            case _:
                raise HpcbalError(f"an executor got {order!r}, which it does not know")

    def hold_moves(self) -> Waits[None]:
        """Let no block leave until `Continue`, and wait until those on their way have arrived."""
        self._hands.hold_parameters()
        if self._moves is not None:
            self._moves.hold()
        yield lambda: self._hands.server_is_quiet and (self._moves is None or self._moves.is_quiet)

    # Turns.

    def _take(self, turn: Turn) -> Waits[None]:
        hands, resources = self._hands, self._resources
        step = turn.epoch if self._steps is None else turn.epoch * self._steps + turn.step
        done = self._open_turns.begin()
        if not turn.num_samples:
            done(TurnDone(step, turn.blocks, 0, 0.0, 0.0, 0.0, 0))
            self._finish(turn)
            return
        bytes_before = hands.worker_bytes
        wanted = hands.gather(turn)
        pull_s, values = yield from self._pull(wanted, step, len(turn.blocks), is_of_turn=True)
        num_bytes = hands.worker_bytes - bytes_before
        with resources.computing() as begun:
            yield from begun
            updates, compute_s = yield from hands.compute(turn, wanted, values)
        del wanted, values
        with resources.communicating(step) as begun:
            yield from begun
            push_start_s = hands.now_s

            def applied() -> None:
                push_s = hands.now_s - push_start_s
                done(TurnDone(step, turn.blocks, turn.num_samples, compute_s, pull_s, push_s, num_bytes))

            # The next pull may be answered before this push is applied; its bytes are not those of this turn.
            bytes_before = hands.worker_bytes
            yield from hands.push(updates, step, applied)
            num_bytes += hands.worker_bytes - bytes_before
            del updates
            if resources.waits_for_pushes:
                yield lambda: not hands.num_unapplied
        self._finish(turn)

    def _finish(self, turn: Turn) -> None:
        self.samples.finish(turn)
        self.samples.settle()

    def _pull(
        self, wanted: W, step: int, share: int, *, is_of_turn: bool = False, keeps_dense: bool = False
    ) -> Waits[tuple[float, V]]:
        """Pull what is wanted; returns for how long, and the values."""
        hands = self._hands
        with self._resources.communicating(step if is_of_turn else None) as begun:
            yield from begun
            start_s = hands.now_s
            values = yield from hands.pull(wanted, step, share, keeps_dense=keeps_dense)
            return hands.now_s - start_s, values

    # Outside of turns.

    def _initialise(self) -> Waits[None]:
        """Push what data blocks push once, before the first epoch; over when it has been applied."""
        for compute in self._hands.first_blocks():
            with self._resources.computing() as begun:
                yield from begun
                updates = compute()
            yield from self._push_first(updates)
        yield from self._push_first(self._hands.first_updates_left())

    def _push_first(self, updates: U | None) -> Waits[None]:
        if updates is not None:
            with self._resources.communicating() as begun:
                yield from begun
                yield from self._hands.push(updates, BEFORE_ALL_STEPS, _nothing)
                yield lambda: not self._hands.num_unapplied

    def _evaluate(self) -> Waits[None]:
        """Compute the terms of the objective of all own blocks that miss them, and report them.

        Dense tables are pulled once for all of them. If it is given up, nothing is reported.
        """
        self._must_evaluate = False
        hands, epoch = self._hands, self._evaluating
        start_s = hands.now_s
        data: dict[int, Mapping[str, float]] = {}
        parameters: dict[int, Mapping[str, float]] = {}
        step = epoch * (self._steps or 1)
        missing = self.samples.take_unevaluated(epoch)
        for wanted, blocks in hands.evaluated_together(missing, epoch):
            _, values = yield from self._pull(wanted, step, 0, keeps_dense=bool(data))
            for block in blocks:
                found = yield from self._terms_of(block, values)
                if found is None:
                    hands.drop()
                    return
                number, terms = found
                data[number] = terms
            del values
            hands.drop()
        for number, compute in hands.parameter_objectives(epoch):
            with self._resources.computing() as begun:
                yield from begun
                parameters[number] = compute()
        if data or parameters:
            self._report(messages.Evaluated(epoch, data, parameters, hands.now_s - start_s))

    def _terms_of(self, block: B, values: V) -> Waits[tuple[int, Mapping[str, float]] | None]:
        """Compute the terms of a data block; returns its number and them, or None: they are given up."""
        self._hands.listen()
        if self._is_given_up:
            return None
        number, compute = self._hands.objective(block, values)
        with self._resources.computing() as begun:
            yield from begun
            found = self._hands.begin_terms(compute)
            yield lambda: self._is_given_up or found() is not None
            terms = found()
        return None if terms is None else (number, terms)

    @property
    def _is_given_up(self) -> bool:
        """Whether the objective being computed is not awaited any more: no pause comes amid others."""
        return any(isinstance(order, messages.Pause) for order in self._orders)


def _nothing() -> None:
    pass


def _not_here(hands: object) -> HpcbalError:
    return HpcbalError(f"a worker whose hands are {type(hands).__name__} saves nothing, and no block moves")
