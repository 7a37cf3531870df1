"""Find the GPU that a trainer group waited for in an epoch, and why it was late."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.telemetry.ledger import RankFacts, Straggler

LEAST_LATE = 0.1  # fraction of the time of an epoch's training steps; less is noise
COLLECTIVE_SHARE = 0.5  # if the last rank spends more than this in the collective, the all-reduce is slow


def find_straggler(ranks: RankFacts, gpus: Sequence[int]) -> Straggler | None:
    """The straggler of an epoch; None if no rank was later than noise explains.

    Args:
        ranks: where the group's ranks, at least two, spent the time of its training steps.
        gpus: the group's GPUs, by rank.
    """
    arrived = [wait + compute for wait, compute in zip(ranks.wait_s, ranks.compute_s, strict=True)]
    last = max(range(len(arrived)), key=lambda rank: (arrived[rank], -rank))
    total_s = arrived[last] + ranks.collective_s[last]
    late_s = arrived[last] - _mean_of_others(arrived, last)
    if late_s >= LEAST_LATE * total_s > 0.0:
        late_by_cause = {
            why: seconds[last] - _mean_of_others(seconds, last)
            for why, seconds in (("compute", ranks.compute_s), ("input", ranks.wait_s))
        }
        return Straggler(gpus[last], max(late_by_cause, key=late_by_cause.__getitem__), late_s)
    summing_s = min(ranks.collective_s)  # the last rank waits for no other
    if summing_s > COLLECTIVE_SHARE * total_s:
        return Straggler(None, "collective", summing_s)
    return None


def balancing_would_save(ranks: RankFacts) -> float:
    """Fraction of the time of an epoch's training steps that balancing would save, 0..1.

    Balanced shares of the work are proportional to the ranks' speeds.

    Args:
        ranks: see `find_straggler`.
    """
    worked_s = ranks.worked_s
    work = ranks.samples if ranks.work is None else ranks.work
    pairs = zip(ranks.wait_s, ranks.compute_s, ranks.collective_s, strict=True)
    total_s = max((sum(parts) for parts in pairs), default=0.0)
    if total_s <= 0.0 or min(worked_s) <= 0.0:
        return 0.0
    speed = sum(n / seconds for n, seconds in zip(work, worked_s, strict=True))
    return max(0.0, max(worked_s) - sum(work) / speed) / total_s if speed else 0.0


def _mean_of_others(values: Sequence[float], left_out: int) -> float:
    return (sum(values) - values[left_out]) / (len(values) - 1)
