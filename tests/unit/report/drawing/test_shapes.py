"""Scales, labels, colours and blocks: what makes a chart legible."""

from __future__ import annotations

import itertools

import pytest

from hpcbal.report.charts.bars import MAX_BARS, bars_of
from hpcbal.report.charts.gantt import Block, blocks_of
from hpcbal.report.drawing.axes import (
    Scale,
    change_label,
    duration_label,
    epoch_ticks,
    number_label,
    number_ticks,
    percent_label,
    spread,
    time_label,
    time_ticks,
)
from hpcbal.report.drawing.names import PALETTE, colors_of, distinct_names, ink_on, tint
from hpcbal.report.drawing.shapes import Sheet, shortened, text_width, to_png
from hpcbal.report.model import SlotSpan, SlotUse


def test_a_scale_maps_its_ends() -> None:
    scale = Scale(10.0, 20.0, 100.0, 0.0)
    assert (scale(10.0), scale(15.0), scale(20.0)) == (100.0, 50.0, 0.0)
    assert Scale(3.0, 3.0, 5.0, 9.0)(3.0) == 5.0


@pytest.mark.parametrize(
    ("low", "high", "most", "ticks"),
    [
        (0.0, 1.0, 5, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.13, 0.94, 4, [0.5]),
        (0.0, 1499.0, 6, [0.0, 500.0, 1000.0]),
        (2.0, 2.0, 5, [2.0]),
    ],
)
def test_ticks_are_round_numbers_inside(low: float, high: float, most: int, ticks: list[float]) -> None:
    assert number_ticks(low, high, most) == pytest.approx(ticks)


@pytest.mark.parametrize("high_s", [0.3, 7.0, 59.0, 61.0, 3599.0, 90_000.0, 2_000_000.0])
def test_times_have_few_round_ticks(high_s: float) -> None:
    ticks = time_ticks(high_s, 6)
    assert ticks[0] == 0.0
    assert ticks[-1] <= high_s
    assert 2 <= len(ticks) <= 8


@pytest.mark.parametrize(
    ("seconds", "span_s", "text"),
    [
        (0.0, 10.0, "0"),
        (2.5, 10.0, "2.5 s"),
        (150.0, 600.0, "2:30 min"),
        (5400.0, 9000.0, "1:30 h"),
        (183_600.0, 400_000.0, "2 d 3 h"),
    ],
)
def test_times_on_an_axis(seconds: float, span_s: float, text: str) -> None:
    assert time_label(seconds, span_s) == text


def test_durations_and_numbers_for_people() -> None:
    durations = [duration_label(s) for s in (0.44, 42.0, 725.0, 3600.0, 12_000.0, 187_200.0)]
    assert durations == ["0.4 s", "42 s", "12 min 5 s", "1 h", "3 h 20 min", "2 d 4 h"]
    assert [number_label(v) for v in (0.0, 0.1234, 45.67, 1234.5, -2.0)] == [
        "0",
        "0.123",
        "45.7",
        "1,230",
        "-2.00",
    ]
    assert [change_label(v) for v in (0.08, -0.004, -0.126)] == ["+8 %", "0 %", "\N{MINUS SIGN}13 %"]
    assert [percent_label(v) for v in (0.0, 0.0004, 0.004, 0.0999, 0.5)] == [
        "0 %",
        "< 0.1 %",
        "0.4 %",
        "10 %",
        "50 %",
    ]


def test_labels_are_spread_apart_near_where_they_belong() -> None:
    assert spread([10.0, 50.0], 15.0, 0.0, 100.0) == [10.0, 50.0]
    assert spread([50.0, 50.0, 52.0], 10.0, 0.0, 100.0) == pytest.approx([40.7, 50.7, 60.7], abs=0.1)
    assert spread([98.0, 99.0], 10.0, 0.0, 100.0) == [90.0, 100.0]
    assert spread([1.0, 2.0], 10.0, 0.0, 100.0) == [0.0, 10.0]
    assert spread([], 10.0, 0.0, 100.0) == []


def test_a_long_name_keeps_its_ends() -> None:
    assert shortened("short", 100.0, 11.0) == "short"
    cut = shortened("densenet-169-k24-113", 80.0, 11.0)
    assert cut.startswith("dense")
    assert cut.endswith("-113")
    assert shortened("densenet", 10.0, 11.0) == ""


SWEEP = [
    f"densenet-{d}-k{k}-lr{lr}-seed{s}"
    for d in (40, 121)
    for k in (12, 24)
    for lr in (0.1, 0.01)
    for s in "12"
]


def test_names_that_fit_or_stay_different_are_shortened_alone() -> None:
    assert distinct_names(["ab", "cd"], 100.0, 11.0) == {"ab": "ab", "cd": "cd"}
    names = ["densenet-169-k24-113", "densenet-169-k24-114"]
    assert distinct_names(names, 80.0, 11.0) == {name: shortened(name, 80.0, 11.0) for name in names}


@pytest.mark.parametrize("width", [30.0, 45.0, 70.0, 100.0, 300.0])
@pytest.mark.parametrize("names", [SWEEP, [f"{'x' * 40}{'y' * i}{'x' * 40}" for i in range(30)]])
def test_different_names_stay_different_and_fit(names: list[str], width: float) -> None:
    labels = distinct_names(names, width, 11.0)
    assert list(labels) == names
    assert len(set(labels.values())) == len(names)
    assert all(0 < text_width(label, 11.0) <= width for label in labels.values())


def test_names_of_a_sweep_show_the_values_in_which_they_differ() -> None:
    labels = distinct_names(SWEEP, 100.0, 11.0)
    assert labels["densenet-121-k12-lr0.01-seed2"] == "121-12-0.01-2"
    words = distinct_names([f"net-{word}-{'x' * 30}-1" for word in ("with", "without")], 60.0, 11.0)
    assert list(words.values()) == ["with", "without"]


def test_without_room_there_is_no_name() -> None:
    assert distinct_names(["densenet-1", "densenet-2"], 10.0, 11.0) == {"densenet-1": "", "densenet-2": ""}


@pytest.mark.parametrize("width", [60.0, 90.0, 192.0, 700.0])
def test_epochs_have_at_least_two_whole_ticks_that_do_not_touch(width: float) -> None:
    for last in [*range(2, 60), 100, 299, 1000]:
        ticks = epoch_ticks(float(last), width)
        assert 2 <= len(ticks) <= max(2, width / 45.0 + 1)
        assert all(tick == int(tick) and 1 <= tick <= last for tick in ticks)
        assert len({b - a for a, b in itertools.pairwise(ticks)}) == 1


def test_writing_on_a_colour_has_contrast() -> None:
    assert ink_on("#0072b2") == "#ffffff"
    assert ink_on("#ffffff") != "#ffffff"
    assert [tint("#000000"), tint("#ffffff")] == ["#aaaaaa", "#ffffff"]
    assert len(set(colors_of("abcdefghijklmnop").values())) == len(PALETTE) == 16


def test_neighbouring_slots_of_a_dnn_are_one_block() -> None:
    spans = (*(SlotSpan(slot, "a", 0.0, 5.0) for slot in (0, 1, 2, 5)), SlotSpan(1, "b", 5.0, 6.0))
    assert sorted(blocks_of(spans), key=lambda block: (block.start_s, block.first)) == [
        Block("a", 0, 2, 0.0, 5.0, "training"),
        Block("a", 5, 5, 0.0, 5.0, "training"),
        Block("b", 1, 1, 5.0, 6.0, "training"),
    ]


def test_many_slots_share_bars_and_keep_their_time() -> None:
    use = tuple(SlotUse(slot, {"training": 1.0, "idle": 3.0}) for slot in range(1000))
    bars = bars_of(use)
    assert len(bars) <= MAX_BARS
    assert (bars[0][0], bars[-1][1]) == (0, 999)
    assert all(bar.share("training") == pytest.approx(0.25) for _, _, bar in bars)
    assert sum(sum(bar.seconds.values()) for _, _, bar in bars) == pytest.approx(4000.0)


def test_a_drawing_becomes_an_image_of_its_size_and_colours() -> None:
    import io

    from PIL import Image

    sheet = Sheet()
    sheet.rect(0.0, 0.0, 50.0, 100.0, "#0072b2")
    sheet.line([(60.0, 0.0), (60.0, 100.0)], "#d55e00", 4.0, dash="4 3")
    sheet.circle(80.0, 50.0, 8.0, "#009e73", "#009e73")
    sheet.text(90.0, 50.0, "$\\frac{cost}{}$", anchor="end")
    image = Image.open(io.BytesIO(to_png(sheet.done("x", "x", 100.0, 100.0)))).convert("RGB")
    assert image.size == (200, 200)
    assert image.getpixel((50, 100)) == (0x00, 0x72, 0xB2)
    assert image.getpixel((160, 100)) == (0x00, 0x9E, 0x73)
    assert image.getpixel((190, 10)) == (255, 255, 255)
