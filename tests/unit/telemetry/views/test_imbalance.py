"""The imbalance that is left, with numbers by hand."""

from __future__ import annotations

import pytest

from hpcbal.events.history import RankFacts
from hpcbal.telemetry.views.summary import GroupWork, group_work

NOT_KNOWN = float("nan")


def ranks_of(
    work: tuple[float, ...] | None,
    slowest_work: float | None = None,
    waited_s: tuple[float, ...] | None = None,
    collective_s: tuple[float, ...] = (0.0, 0.0),
) -> RankFacts:
    """Two ranks that compute for 4 s each."""
    zeros, computed_s, sizes = (0.0, 0.0), (4.0, 4.0), (8, 8)
    return RankFacts(
        zeros,
        computed_s,
        collective_s,
        sizes,
        computed_s,
        work=work,
        waited_s=waited_s,
        slowest_work=slowest_work,
    )


def test_work_is_imbalanced_where_it_is_equal_over_the_epoch_but_not_in_its_steps() -> None:
    """Two steps, with 6 and 4 of work for the slots, then 4 and 6; each waits for 1 s."""
    turns = ranks_of((10.0, 10.0), slowest_work=12.0, waited_s=(1.0, 1.0), collective_s=(2.0, 2.0))
    assert group_work([turns]) == GroupWork((1.0, 1.0), pytest.approx(1 / 6), pytest.approx(2 / 12), 1)


def test_a_split_by_planned_speed_is_balanced() -> None:
    """One rank is planned to be three times as fast as the other, and gets three times the work."""
    planned = ranks_of((30.0, 10.0), slowest_work=20.0, waited_s=(0.0, 2.0), collective_s=(0.0, 2.0))
    assert group_work([planned]) == GroupWork((1.5, 0.5), 0.0, pytest.approx(0.2), 1)


def test_epochs_add_up() -> None:
    first = ranks_of((30.0, 20.0), 32.0, waited_s=(0.0, 3.0), collective_s=(1.0, 4.0))
    second = ranks_of((25.0, 25.0), 28.0, waited_s=(0.5, 0.5), collective_s=(1.5, 1.5))
    found = GroupWork((1.1, 0.9), pytest.approx(1 - 50 / 60), pytest.approx(4.0 / 24.0), 2)
    assert group_work([first, second]) == found


def test_equal_samples_have_no_work_of_their_own() -> None:
    """As in ledgers of earlier versions."""
    nothing_trained = ranks_of((0.0, 0.0), 0.0, waited_s=(0.0, 0.0))
    for epochs in ([], [ranks_of(None)], [nothing_trained]):
        assert group_work(epochs) is None
    sized = ranks_of((3.0, 1.0), 3.0, waited_s=(0.0, 1.0), collective_s=(0.0, 1.0))
    found = group_work([nothing_trained, sized, ranks_of(None)])
    assert found == GroupWork((1.5, 0.5), pytest.approx(1 / 3), pytest.approx(1 / 9), 1)


@pytest.mark.parametrize(("slowest", "waited_s"), [(None, None), (NOT_KNOWN, (NOT_KNOWN, 1.0))])
def test_what_was_not_measured_is_not_known(
    slowest: float | None, waited_s: tuple[float, float] | None
) -> None:
    assert group_work([ranks_of((1.0, 1.0), slowest, waited_s)]) == GroupWork((1.0, 1.0), None, None, 1)
