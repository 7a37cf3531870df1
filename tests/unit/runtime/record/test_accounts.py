"""The cost of a DNN, over groups and starts."""

from __future__ import annotations

from hpcbal.events.ensemble import GroupPlan, StartProfiling
from hpcbal.runtime.record.accounts import Accounts
from hpcbal.runtime.resuming.resume import Account


def test_costs_add_up_over_starts_and_groups() -> None:
    times = iter([10.0, 12.0, 13.0, 20.0, 24.0])
    accounts = Accounts({"a": Account(5.0, 7.0), "b": Account()}, clock=lambda: next(times))
    accounts.handle(StartProfiling((GroupPlan("a", (0, 2)), GroupPlan("b", (1,)))))  # at 10
    assert accounts.now("a") == Account(7.0, 11.0)  # at 12
    assert accounts.leave("a") == Account(3.0, 6.0)  # at 13
    assert accounts.now("a") == Account(8.0, 13.0)
    accounts.handle(StartProfiling((GroupPlan("a", (1,)),)))  # at 20
    assert accounts.leave("a") == Account(4.0, 4.0)  # at 24
    assert accounts.now("a") == Account(12.0, 17.0)
