"""Whatever happens in a run, a report accounts for every second of every slot, and its page can be drawn."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_lines import a, entry, plan_of

from hpcbal.events.ensemble import RoundPlan
from hpcbal.events.history import EpochFacts
from hpcbal.report.model import USE_KINDS, ReportData, SlotSpan, SlotUse
from hpcbal.report.page.page import render_page
from hpcbal.report.reading.replay import Replay
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT
from hpcbal.telemetry.ledger.run import NodeFacts

NUM_SLOTS = 4
DNNS = ("a", "b", "c")


def round_of(slots: dict[str, tuple[int, ...]], index: int) -> RoundPlan:
    rates = dict.fromkeys(slots, 10.0)
    return plan_of(slots, index=index, num_preprocessors=1, predicted_rate_samples_per_s=rates)


@st.composite
def ledgers(draw: st.DrawFn) -> list[Entry]:
    """Lines in an order that a run, or several starts with kills between them, could have written.

    Measured times may be longer than the time that has passed: clocks are read on different ranks.
    """
    lines: list[Entry] = []
    now = 1.79e9
    open_dnns: list[str] = []

    def add(event: str, **fields: Any) -> None:
        nonlocal now
        now += draw(st.floats(0.0, 100.0))
        lines.append(entry(a(LINE_BY_EVENT[event], **fields), len(lines), now))

    def start() -> None:
        open_dnns.clear()
        add("run-started", name="x", nodes=(NodeFacts("n", NUM_SLOTS),))

    start()
    for index in range(draw(st.integers(2, 30))):
        what = draw(
            st.sampled_from(["round", "alone", "profile", "epoch", "leave", "save", "end", "restart"])
        )
        free = [dnn for dnn in DNNS if dnn not in open_dnns]
        if what in ("round", "profile") and not open_dnns:
            cut = draw(st.integers(1, NUM_SLOTS - 1))
            slots = {"a": tuple(range(cut)), "b": tuple(range(cut, NUM_SLOTS))}
            open_dnns += slots
            if what == "round":
                add("round-started", plan=round_of(slots, index))
            else:
                add("profiling-started", groups=round_of(slots, 0).groups)
        elif what == "alone" and len(free) == len(DNNS):
            open_dnns.append("c")
            add("group-started", plan=round_of({"c": (draw(st.integers(0, NUM_SLOTS - 1)),)}, index))
        elif what == "epoch" and open_dnns:
            seconds = draw(st.floats(0.0, 200.0))
            facts = a(
                EpochFacts,
                wait_s=draw(st.floats(0.0, seconds)),
                num_samples=draw(st.integers(0, 1_000_000)),
                num_trained=draw(st.integers(0, 1_000_000)),
                trained_s=draw(st.floats(0.0, seconds)),
            )
            add(
                "epoch-done",
                dnn_id=draw(st.sampled_from(open_dnns)),
                pass_index=index,
                seconds=seconds,
                metrics={"val_accuracy": draw(st.just(math.nan) | st.floats(0.0, 1.0))},
                facts=facts,
            )
        elif what == "save" and open_dnns:
            add("checkpoint-written", dnn_id=open_dnns[0], held_s=draw(st.floats(0.0, 10.0)))
        elif what == "leave" and open_dnns:
            dnn = open_dnns.pop()
            if draw(st.booleans()):
                add("leave-round", dnn_id=dnn)
            add("group-left", dnn_id=dnn)
        elif what == "end" and not open_dnns:
            add("round-ended")
        elif what == "restart":
            start()
    return lines


def replay_of(lines: list[Entry]) -> Replay:
    replay = Replay()
    for line in lines:
        replay.take(line)
    return replay


@given(ledgers())
def test_every_second_of_every_slot_is_exactly_one_thing(lines: list[Entry]) -> None:
    replay = replay_of(lines)
    assert len(replay.use()) == NUM_SLOTS
    for use in replay.use():
        assert set(use.seconds) <= set(USE_KINDS)
        assert min(use.seconds.values()) >= 0.0
        assert abs(sum(use.seconds.values()) - replay.now_s) < 1e-6 * max(1.0, replay.now_s)


@given(ledgers())
def test_spans_lie_on_the_axis_and_never_share_a_slot(lines: list[Entry]) -> None:
    replay = replay_of(lines)
    by_slot: dict[int, list[SlotSpan]] = {}
    for span in replay.spans():
        assert 0.0 <= span.start_s <= span.end_s <= replay.now_s
        by_slot.setdefault(span.slot, []).append(span)
    for spans in by_slot.values():
        spans.sort(key=lambda span: (span.start_s, span.end_s))
        for before, after in itertools.pairwise(spans):
            assert before.end_s <= after.start_s
    starts = [each.start_s for each in replay.round_reports()]
    assert starts == sorted(starts)


@settings(max_examples=15, deadline=None)
@given(ledgers())
def test_a_page_can_be_drawn(lines: list[Entry]) -> None:
    replay = replay_of(lines)
    data = ReportData(
        name="x",
        kind="run",
        state="running",
        duration_s=replay.now_s,
        slot_names=replay.slot_names,
        start_s=tuple(replay.start_s),
        rounds=replay.round_reports(),
        spans=replay.spans(),
        use=replay.use(),
        rates=replay.rates(),
    )
    page = render_page(data)
    assert page.count("<svg ") == page.count("</svg>")
    assert "nan" not in page


@given(st.lists(st.floats(0.0, 1e5), min_size=1, max_size=7))
def test_shares_of_a_slot_add_up(seconds: list[float]) -> None:
    use = SlotUse(0, dict(zip(USE_KINDS, seconds, strict=False)))
    total = sum(use.share(kind) for kind in USE_KINDS)
    assert abs(total - (1.0 if sum(seconds) else 0.0)) < 1e-9
