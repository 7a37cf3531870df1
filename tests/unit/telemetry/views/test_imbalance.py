"""The imbalance that is left, with numbers by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.telemetry.ledger import RankFacts
from hpcbal.telemetry.views.imbalance import GroupWork, group_work


def ranks_of(
    work: tuple[float, ...] | None, waited_s: tuple[float, ...] | None, collective_s: tuple[float, ...] = ()
) -> RankFacts:
    """Ranks that compute for 4 s each."""
    own: Any = work or (0.0,) * 3
    zeros, computed_s = (0.0,) * len(own), (4.0,) * len(own)
    return RankFacts(
        zeros, computed_s, collective_s or zeros, (8,) * len(own), computed_s, work=work, waited_s=waited_s
    )


def test_imbalance_left_is_waiting_over_the_time_of_the_steps() -> None:
    """Four steps: two of them wait 1 s for the first slot, two for the second.

    The all-reduce itself takes 0.25 s.
    """
    both_wait = ranks_of((10.0, 10.0), waited_s=(2.0, 2.0), collective_s=(3.0, 3.0))
    assert group_work([both_wait]) == GroupWork((1.0, 1.0), pytest.approx(4 / 14), 1)


def test_epochs_add_up() -> None:
    first = ranks_of((30.0, 20.0), waited_s=(0.0, 3.0), collective_s=(1.0, 4.0))
    second = ranks_of((25.0, 25.0), waited_s=(0.5, 0.5), collective_s=(1.5, 1.5))
    assert group_work([first, second]) == GroupWork((1.1, 0.9), pytest.approx(4.0 / 24.0), 2)


def test_equal_samples_have_no_work_of_their_own() -> None:
    nothing_trained = ranks_of((0.0, 0.0), waited_s=(0.0, 0.0))
    for epochs in ([], [ranks_of(None, None)], [nothing_trained]):
        assert group_work(epochs) is None
    sized = ranks_of((3.0, 1.0), waited_s=(0.0, 1.0), collective_s=(0.0, 1.0))
    assert group_work([nothing_trained, sized, ranks_of(None, None)]) == GroupWork((1.5, 0.5), 1 / 9, 1)


@pytest.mark.parametrize("waited_s", [None, (float("nan"), 1.0)])
def test_without_a_measurement_the_imbalance_is_not_known(waited_s: tuple[float, ...] | None) -> None:
    assert group_work([ranks_of((1.0, 1.0), waited_s)]) == GroupWork((1.0, 1.0), None, 1)
