"""Account for the cost of each DNN: its wall time in groups, and its slot-seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from hpcbal.control.messages import GroupPlan
from hpcbal.runtime.resuming.resume import Account


class Accounts:
    """Sums over all starts of a run.

    Args:
        earlier: accounts of earlier starts, one per DNN; this object adds to them.
        clock: monotonic seconds, for tests.
    """

    def __init__(self, earlier: Mapping[str, Account], clock: Callable[[], float] = time.monotonic) -> None:
        self._accounts = dict(earlier)
        self._clock = clock
        self._joined: dict[str, tuple[float, int]] = {}  # when, and with how many slots

    def join(self, groups: Iterable[GroupPlan]) -> None:
        """Record that these groups hold their slots from now on."""
        now = self._clock()
        self._joined.update({group.dnn_id: (now, len(group.gpus)) for group in groups})

    def leave(self, dnn_id: str) -> Account:
        """Record that the group of `dnn_id` has released its slots; returns its cost since it joined."""
        cost = self._running(*self._joined.pop(dnn_id))
        account = self._accounts[dnn_id]
        account.wall_time_s += cost.wall_time_s
        account.slot_seconds += cost.slot_seconds
        return cost

    def now(self, dnn_id: str) -> Account:
        """The total cost of `dnn_id` up to now."""
        account = self._accounts[dnn_id]
        if dnn_id not in self._joined:
            return account
        running = self._running(*self._joined[dnn_id])
        return Account(account.wall_time_s + running.wall_time_s, account.slot_seconds + running.slot_seconds)

    def _running(self, joined_s: float, num_slots: int) -> Account:
        wall_time_s = self._clock() - joined_s
        return Account(wall_time_s, wall_time_s * num_slots)
