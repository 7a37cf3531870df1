"""Whose pull or push is next on the machines of its job: on all of them at the same time.

A worker pulls from servers on all machines of its job. If another job used the network of some of them
meanwhile, both would take longer, and the times that are measured would be of no use for predictions. So the
subtask of a job begins once all its workers are there ([PS] Fig. 4.6), and once no other job uses any of its
machines.

A push and the pull of the next step are one turn at the network: the job keeps it between the two. Otherwise
the long pull of another job may come between, while the cores wait for the short one; some groups took 1.4
times as long (docs/adr/0021).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Member:
    """A job.

    Attributes:
        workers: ranks that take turns.
        machines: ranks whose network its subtasks use.
        asked: workers that wait, by step.
        idle: workers without samples in a step; they do not ask.
        using: workers whose subtask is not over.
        began_step: of its last subtask.
        is_push: whether that was the push of the step, not the pull.
        kept_until_s: until when others leave it the network; None: they need not.
        is_free: whether it may use the network whenever it likes.
    """

    workers: frozenset[int]
    machines: frozenset[int]
    asked: set[int] = field(default_factory=set)
    step: int = -1
    idle: set[int] = field(default_factory=set)
    using: set[int] = field(default_factory=set)
    began_step: int = -1
    is_push: bool = False
    kept_until_s: float | None = None
    is_free: bool = False

    @property
    def is_ready(self) -> bool:
        return bool(self.asked) and self.asked | self.idle >= self.workers


KEEP_S = 0.05
"""Seconds for which the network is kept at most for a job that is about to pull: messages and the making of a
batch take less, and no job stops the others of its group by being slow at it."""

Grant = tuple[str, tuple[int, ...]]
"""A job whose subtask begins, and its workers that have asked."""


class NetworkSynchroniser:
    """Grants the network to one job after the other, in the order in which their workers were there.

    Times are in seconds of any one clock.
    """

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._ready: list[str] = []

    def add(self, job: str, workers: Iterable[int], machines: Iterable[int]) -> None:
        """A job starts on machines; some of them may be without samples of it."""
        self._members[job] = _Member(frozenset(workers), frozenset(machines))

    def remove(self, job: str) -> list[Grant]:
        """A job has ended."""
        self._members.pop(job, None)
        self._ready = [other for other in self._ready if other != job]
        return self._begin()

    def let_go(self, job: str) -> list[Grant]:
        """One of the job's workers has failed, so the others must not wait for it any more."""
        member = self._members.get(job)
        if member is None or member.is_free:
            return []
        member.is_free, member.kept_until_s = True, None
        member.using = set()
        self._ready = [other for other in self._ready if other != job]
        waiting, member.asked = tuple(sorted(member.asked)), set()
        return [*([(job, waiting)] if waiting else []), *self._begin()]

    def ask(self, job: str, worker: int, step: int) -> list[Grant]:
        """A worker is there."""
        member = self._members.get(job)
        if member is None:
            return []
        if member.is_free:
            return [(job, (worker,))]
        self._note_step(member, step)
        member.asked.add(worker)
        return self._look(job, member)

    def idle(self, job: str, worker: int, step: int) -> list[Grant]:
        """A worker has no samples in a step."""
        member = self._members.get(job)
        if member is None or member.is_free:
            return []
        self._note_step(member, step)
        if member.step == step:
            member.idle.add(worker)
        return self._look(job, member)

    def used(self, job: str, worker: int, now_s: float, *, goes_on: bool) -> list[Grant]:
        """A worker's subtask is over.

        Args:
            now_s: the time; call `release` after `KEEP_S`.
            goes_on: whether the job's workers have been allowed a step that they have not done.
        """
        member = self._members.get(job)
        if member is None or worker not in member.using:
            return []
        member.using.discard(worker)
        if member.using:
            return []
        if member.is_push and goes_on:
            if job in self._ready:  # all of its workers were faster than this message
                self._put_first(job)
            else:
                member.kept_until_s = now_s + KEEP_S
        return self._begin()

    def release(self, now_s: float) -> list[Grant]:
        """Let others begin where a job has not come in time to pull."""
        late = [
            member
            for member in self._members.values()
            if member.kept_until_s is not None and member.kept_until_s <= now_s
        ]
        for member in late:
            member.kept_until_s = None
        return self._begin() if late else []

    def _note_step(self, member: _Member, step: int) -> None:
        if step > member.step:
            member.step, member.idle = step, set()

    def _look(self, job: str, member: _Member) -> list[Grant]:
        if not member.is_ready or job in self._ready:
            return []
        self._ready.append(job)
        if member.kept_until_s is not None:
            member.kept_until_s = None
            self._put_first(job)
        return self._begin()

    def _put_first(self, job: str) -> None:
        self._ready.remove(job)
        self._ready.insert(0, job)

    def _begin(self) -> list[Grant]:
        """Grant the network to ready jobs, in order, if no other one uses, keeps or awaits their machines."""
        taken = {
            rank
            for member in self._members.values()
            if member.using or member.kept_until_s is not None
            for rank in member.machines
        }
        begun: list[Grant] = []
        for job in list(self._ready):
            member = self._members[job]
            if not taken & member.machines and not member.using:
                self._ready.remove(job)
                member.using, member.asked = set(member.asked), set()
                member.is_push = member.step == member.began_step
                member.began_step = member.step
                begun.append((job, tuple(sorted(member.using))))
            taken |= member.machines
        return begun
