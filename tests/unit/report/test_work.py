"""Where samples differ in size, the report shows the work of each slot and the imbalance that is left."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.events.history import RankFacts
from hpcbal.report.charts.all_charts import WIDE, draw_charts
from hpcbal.report.model import ReportData, SharePoint, WorkReport
from hpcbal.report.page.page import render_page


def sized(*work: float, slowest: float, waited_s: tuple[float, ...]) -> dict[str, Any]:
    """Ranks that compute for 1 s each; the all-reduce takes no time but that of waiting."""
    zeros, ones = (0.0,) * len(work), (1.0,) * len(work)
    ranks = RankFacts(
        zeros, ones, waited_s, (8,) * len(work), ones, work=work, waited_s=waited_s, slowest_work=slowest
    )
    return {"ranks": ranks}


@pytest.fixture
def unequal(history: Any) -> ReportData:
    """Two groups on samples of unequal size; in its second round, a has one slot."""
    history.start(0, (4,)).round(0, 0, {"a": (0, 2), "b": (1, 3)})
    history.epoch(3, "a", 2.0, **sized(24.0, 8.0, slowest=24.0, waited_s=(0.0, 0.5)))
    history.epoch(3, "b", 2.0, **sized(10.0, 30.0, slowest=40.0, waited_s=(3.0, 0.0)))
    history.epoch(6, "a", 2.0, **sized(16.0, 16.0, slowest=16.0, waited_s=(0.25, 0.25)))
    history.leave(7, "a").leave(7, "b").round(7, 1, {"a": (1,)}, a=2)
    return history.epoch(9, "a", 2.0).read()


def test_work_is_summed_over_each_group_and_round_and_the_most_imbalanced_comes_first(
    unequal: ReportData,
) -> None:
    assert unequal.works == (
        WorkReport("b", 0, {1: 0.5, 3: 1.5}, 0.5, pytest.approx(3 / 5), 1),
        WorkReport("a", 0, {0: 1.25, 2: 0.75}, pytest.approx(1 / 5), pytest.approx(1 / 5), 2),
    )


def test_the_page_has_a_table_and_its_chart_shows_shares_of_the_work(unequal: ReportData) -> None:
    assert unequal.shares["a"][0] == SharePoint(1, {0: 0.75, 2: 0.25})
    page = render_page(unequal)
    part = page.partition('<section id="work">')[2].partition("</section>")[0]
    assert 'title="slot 1">0.50</td><td class="number" title="slot 3">1.50</td>' in part
    assert '>50 %</td><td class="number">60 %<' in part
    assert "<h2>Shares of the work</h2>" in page
    assert draw_charts(unequal, WIDE)["shares"].title == "Shares of the work, birds"


def test_nothing_is_added_where_samples_are_equal(finished: ReportData) -> None:
    assert finished.works == ()
    assert '<section id="work">' not in render_page(finished)
