"""Stragglers are found in the ledger and shown on the page."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.events.history import BalanceFacts, Straggler
from hpcbal.report.charts.all_charts import NARROW, WIDE, draw_charts
from hpcbal.report.drawing.shapes import Text
from hpcbal.report.model import GroupWait, LeftOut, ReportData, SharePoint
from hpcbal.report.page.page import render_page


def late(slot: int | None, why: str, late_s: float) -> dict[str, Any]:
    return {"straggler": Straggler(slot, why, late_s)}


def balanced(*sizes: int) -> dict[str, Any]:
    return {"balance": BalanceFacts(sizes)}


@pytest.fixture
def removed(history: Any) -> ReportData:
    """Group a waits for slot 2, mostly, until it drops that slot; b has its own slot."""
    history.start(0, (4,)).round(0, 0, {"a": (0, 1, 2), "b": (3,)})
    history.epoch(3, "a", 2.0, **late(2, "compute", 1.0), **balanced(10, 10, 4))
    history.epoch(3, "b", 2.0)
    history.epoch(6, "a", 2.0, **late(1, "input", 0.2), **balanced(12, 11, 1))
    history.epoch(9, "a", 2.0, **late(2, "compute", 0.5), **balanced(12, 11, 1))
    history.add(9, "slot-left-out", dnn_id="a", slot=2).leave(10, "a").leave(10, "b")
    history.round(10, 1, {"a": (0, 1)}, a=3)
    history.epoch(12, "a", 1.0, **balanced(12, 12))
    return history.read()


def test_each_group_and_round_names_what_cost_it_most(removed: ReportData) -> None:
    (wait,) = removed.waits
    assert wait == GroupWait("a", 0, 3, 2, "compute", 1.5, pytest.approx(1.5 / 5.4), 2, 3)
    assert removed.left_out == (LeftOut("a", 2, 9.0),)


def test_shares_follow_the_group_and_lost_epochs_are_dropped(removed: ReportData, history: Any) -> None:
    points = removed.shares["a"]
    assert [point.epoch for point in points] == [1, 2, 3, 4]
    assert points[0] == SharePoint(1, {0: 10 / 24, 1: 10 / 24, 2: 4 / 24})
    assert points[3] == SharePoint(4, {0: 0.5, 1: 0.5})
    again = history.start(20, (4,), resumed=True).round(21, 2, {"a": (0, 1)}, a=1).read()
    assert [point.epoch for point in again.shares["a"]] == [1]


def test_the_costliest_group_comes_first(history: Any) -> None:
    history.start(0, (4,)).round(0, 0, {"a": (0, 1), "b": (2, 3)})
    history.epoch(3, "a", 2.0, **late(1, "compute", 0.3)).epoch(3, "b", 2.0, **late(None, "collective", 1.1))
    assert [(wait.job, wait.slot) for wait in history.read().waits] == [("b", None), ("a", 1)]


def test_the_page_shows_who_was_late_why_and_the_result(removed: ReportData) -> None:
    page = render_page(removed)
    part = page.partition('<section id="stragglers">')[2].partition("</section>")[0]
    assert "After 9.0 s <b>a</b> continued without slot 2" in part
    assert '<td class="slot" title="1 of 3 slots">slot 2</td><td>computed longer</td>' in part
    assert "2 of 3" in part


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_line_per_slot_shows_its_last_share_or_that_it_was_left_out(
    removed: ReportData, width: float
) -> None:
    drawing = draw_charts(removed, width)["shares"]
    texts = [shape.text for shape in drawing.shapes if isinstance(shape, Text)]
    assert {"a", "slot 0 50 %", "slot 1 50 %", "slot 2 left out"} <= set(texts)


def test_nothing_is_reported_if_no_rank_was_late(finished: ReportData) -> None:
    assert finished.waits == ()
    assert '<section id="stragglers">' not in render_page(finished)
    assert "shares" not in draw_charts(finished, WIDE)
