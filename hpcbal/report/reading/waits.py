"""Find the GPUs that groups waited for, the shares of their steps, and the work of their slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from hpcbal.report.model import GroupWait, SharePoint, WorkReport
from hpcbal.report.reading.hold import Hold
from hpcbal.telemetry.ledger import EpochDoneLine
from hpcbal.telemetry.views.imbalance import group_work


def share_point(line: EpochDoneLine, gpus: Sequence[int], epoch: int) -> SharePoint | None:
    """The share of each of the group's `gpus` in a step; None if the group was not balanced.

    If samples differ in size, it is the share of the work in all steps of the epoch.

    Raises:
        ValueError: if the line has shares for another number of GPUs.
    """
    facts = line.facts
    sizes: Sequence[float] = () if facts.balance is None else facts.balance.shares
    if facts.ranks is not None and facts.ranks.work is not None:
        sizes = facts.ranks.work
    if not sum(sizes):
        return None
    return SharePoint(epoch, {gpu: size / sum(sizes) for gpu, size in zip(gpus, sizes, strict=True)})


def waits_of(holds: Iterable[Hold]) -> tuple[GroupWait, ...]:
    """What each group of two or more GPUs waited for most, the costliest first."""
    waits = (_wait_of(hold) for hold in holds if len(hold.gpus) > 1)
    return tuple(sorted((wait for wait in waits if wait is not None), key=lambda wait: -wait.late_s))


def works_of(holds: Iterable[Hold]) -> tuple[WorkReport, ...]:
    """The work of each group whose samples differ in size, the most imbalanced first."""
    works = (_work_of(hold) for hold in holds if len(hold.gpus) > 1)
    return tuple(sorted(filter(None, works), key=lambda work: -(work.imbalance_left or 0.0)))


def _work_of(hold: Hold) -> WorkReport | None:
    work = group_work([epoch.ranks for epoch in hold.epochs if epoch.ranks is not None])
    if work is None:
        return None
    by_gpu = dict(zip(hold.gpus, work.relative, strict=True))
    return WorkReport(hold.dnn, hold.round_index, by_gpu, work.imbalance_left, work.waited, work.num_epochs)


def _wait_of(hold: Hold) -> GroupWait | None:
    late_s: dict[tuple[int | None, str], float] = defaultdict(float)
    num_late: dict[tuple[int | None, str], int] = defaultdict(int)
    for epoch in hold.epochs:
        if epoch.straggler is not None:
            cause = (epoch.straggler.gpu, epoch.straggler.why)
            late_s[cause] += epoch.straggler.late_s
            num_late[cause] += 1
    if not late_s:
        return None
    worst = max(late_s, key=late_s.__getitem__)
    trained_s = sum(epoch.trained_s for epoch in hold.epochs)
    return GroupWait(
        job=hold.dnn,
        round_index=hold.round_index,
        num_gpus=len(hold.gpus),
        gpu=worst[0],
        why=worst[1],
        late_s=late_s[worst],
        share=min(1.0, late_s[worst] / trained_s) if trained_s > 0.0 else 0.0,
        num_late=num_late[worst],
        num_epochs=len(hold.epochs),
    )
