"""How the bench of forecasts measures some seconds of a run, and simulates them."""

from __future__ import annotations

import pytest
from support.forecast_windows import Window

from hpcbal.forecast import Operation, Resource, trace_of_steps
from hpcbal.forecast.cluster import like_machines
from hpcbal.forecast.prediction import Job

WARM_UP_S, SECONDS = 2.0, 12.0


def test_steps_count_in_part_at_both_edges() -> None:
    # From 3 s, a second after both have ended a step, to 6 s: the first does three steps, the other 1.5.
    ends = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 4.0, 6.0, 8.0]]
    assert Window(0.0, 1.0, 6.0).steps_per_s(ends) == pytest.approx(4.5 / 3.0)


def test_a_run_that_ends_before_all_have_warmed_up_is_refused() -> None:
    with pytest.raises(ValueError, match=r"done 1\.0 s before all have warmed up"):
        Window(0.0, 3.0, 5.0).steps_per_s([[1.0, 3.0], [1.0, 4.0]])


@pytest.mark.parametrize(("apart_s", "step_s"), [(0.0, 3.0), (1.0, 2.0)])
def test_a_run_is_simulated_with_the_starts_that_it_had(apart_s: float, step_s: float) -> None:
    # A transfer takes a second of a link, then a computation takes one. Two that start together share each
    # transfer, so that a step takes 3 s; a second apart they never meet.
    operations = (Operation("down", Resource.DOWNLINK, (), 100), Operation("compute", Resource.WORKER, (0,)))
    job = Job(trace_of_steps(operations, [[0, 1]]), like_machines(2, 1, 100.0))
    reached = Window(apart_s, WARM_UP_S, SECONDS).simulated(job, 0.5, 3)
    assert reached == pytest.approx([2 / step_s] * 3)
