"""The page: whole, self-contained, and about what the values say."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import types
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from ledger_lines import entry

from hpcbal.events.ensemble import Delta
from hpcbal.events.members import StopRule
from hpcbal.report.charts.all_charts import NARROW, WIDE, draw_charts
from hpcbal.report.drawing.shapes import to_svg
from hpcbal.report.model import (
    USE_KINDS,
    GroupWait,
    LeftOut,
    ModelWarning,
    Overhead,
    PredictedDuration,
    ReportData,
    SharePoint,
    WorkReport,
)
from hpcbal.report.page.page import render_page
from hpcbal.report.reading.run_files import read_run
from hpcbal.telemetry.ledger.codec import plain_of
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT
from hpcbal.telemetry.views.evaluation import EvaluatedDnn, EvaluatedEnsemble, Evaluation

MINUS = "\N{MINUS SIGN}"
VOID = {"meta", "link", "input", "br"}


class Balance(HTMLParser):
    """Collects tags, and fails where one is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_refers_to_nothing_outside(finished: ReportData) -> None:
    page = render_page(finished)
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">\n<head>')
    assert page.endswith("</html>\n")
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    fetching = [value for name, value in parser.attributes if name in ("src", "href", "srcset", "action")]
    assert fetching == ["data:,"]
    assert not re.search(r"https?://|@import|url\(", page)


def test_all_charts_stand_in_both_widths(history: Any) -> None:
    history.start(0).round(1, 0, {"a": (0,), "b": (1,)}).epoch(5, "a", seconds=3.0).epoch(7, "a", seconds=2.0)
    history.add(8, "dnn-failed", dnn_id="b", cause="nan", detail="ValueError").leave(9, "a")
    page = render_page(history.read())
    for section in ("slots", "learning", "use", "rates"):
        part = page.partition(f'<section id="{section}">')[2].partition("</section>")[0]
        assert part.count("<svg ") == 2, section
    assert "Failures" in page


def test_what_failed_is_reported_and_escaped(finished: ReportData) -> None:
    page = render_page(finished)
    assert "ValueError: &lt;NaN&gt; &amp; co" in page
    assert "<NaN>" not in page


EVIL = "</title></style></script><script>alert('&')</script>\"']]>"


def marked(value: Any, kept: frozenset[str] = frozenset()) -> Any:
    """`value` with markup in every text that it holds, except in those that are `kept`."""
    if isinstance(value, str):
        return value if value in kept else value + EVIL
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        texts = {field.name: marked(getattr(value, field.name), kept) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **texts)
    if isinstance(value, tuple):
        return tuple(marked(each, kept) for each in value)
    if isinstance(value, Mapping):
        return {marked(key, kept): marked(each, kept) for key, each in value.items()}
    return value


class Texts(HTMLParser):
    """Collects what a reader of the page sees, and the elements that run or style something."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen += [value for _, value in attrs if value is not None]
        self.active += [tag] if tag in ("script", "style") else []
        self.active += [name for name, _ in attrs if name.startswith("on")]

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        self.seen.append(data)


def test_no_text_of_a_report_can_break_the_page(finished: ReportData) -> None:
    """Every text field holds markup, and every one is shown as it is."""
    plain = dataclasses.replace(
        finished,
        note="a note",
        waits=(
            GroupWait("a", 0, 2, 1, "a reason", 1.0, 0.1, 1, 3),
            GroupWait("a", 0, 2, None, "collective", 1.0, 0.1, 1, 3),
        ),
        works=(WorkReport("a", 0, {0: 0.9, 1: 1.1}, 0.1, None, 3),),
        left_out=(LeftOut("b", 1, 2.0),),
        warnings=(ModelWarning("b", "a warning" + EVIL),),
        shares={"a": (SharePoint(1, {0: 0.3, 1: 0.7}), SharePoint(2, {0: 0.4, 1: 0.6}))},
        overheads=(Overhead("an overhead", 0.1, "what it is"),),
        facts=(("a fact", "its value"),),
    )
    kinds = ("training", "profiling", "run", "simulation", "failed", "val_accuracy", "ensemble")
    data = marked(plain, frozenset({*USE_KINDS, *kinds, plain.started_at}))
    page = render_page(data)
    assert "<script>alert" not in page
    balance, texts = Balance(), Texts()
    balance.feed(page)
    texts.feed(page)
    assert balance.open == []
    assert texts.active == ["style", "script"], "the page's own"
    shown = "\n".join(texts.seen)
    b = data.jobs[1]
    for text in (
        *(data.name, data.state, data.note, "a reason" + EVIL, *data.slot_names, *data.facts[0]),
        *(
            data.warnings[0].text,
            data.overheads[0].name,
            data.overheads[0].note,
            data.jobs[0].state,
            b.name,
            b.cause,
            b.detail,
        ),
    ):
        assert text.endswith(EVIL), text
        assert text.strip() in shown, text


CONTROLS = "\x1b[31m\x00\r\u202e"


def hostile(hint: Any) -> Any:
    """A value of this type, with markup and controls in every text; every number is 1."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is str:
        return EVIL + CONTROLS
    if hint in (int, float, bool):
        return hint(1)
    if origin in (Union, types.UnionType):
        return hostile(next(each for each in arguments if each is not type(None)))
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return (hostile(arguments[0]),) * 2
    if origin is not None:
        return {hostile(arguments[0]): hostile(arguments[1])}
    hints = get_type_hints(hint)
    if hint is Delta:
        return Delta(relative=1.0)
    if hint is StopRule:  # the mode is checked
        return StopRule(monitor=EVIL + CONTROLS)
    return hint(**{field.name: hostile(hints[field.name]) for field in dataclasses.fields(hint)})


def test_no_field_of_any_line_of_a_ledger_can_break_the_page(tmp_path: Path) -> None:
    kinds = sorted(LINE_BY_EVENT, key=lambda event: event != "run-started")
    entries = [entry(hostile(LINE_BY_EVENT[event]), seq, 1.79e9 + seq) for seq, event in enumerate(kinds)]
    text = "".join(json.dumps(plain_of(each)) + "\n" for each in entries)
    (tmp_path / "ledger.jsonl").write_text(text, encoding="utf-8")
    data = read_run(tmp_path)
    page = render_page(data)
    assert "<script>alert" not in page
    assert all(line.isprintable() for line in page.split("\n"))
    balance, texts = Balance(), Texts()
    balance.feed(page)
    texts.feed(page)
    assert balance.open == []
    assert texts.active == ["style", "script"], "the page's own"
    assert "".join(texts.seen).count(EVIL) >= 20
    for drawing in draw_charts(data, WIDE).values():
        ET.fromstring(to_svg(drawing, standalone=True))


def test_a_browser_may_run_the_script_of_the_page_and_no_other(finished: ReportData) -> None:
    page = render_page(finished)
    (policy,) = re.findall(r"script-src ([^;]*);", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"'sha256-{digest}'"
    assert "addEventListener" in script


def test_a_run_that_has_just_begun_has_a_page(history: Any) -> None:
    page = render_page(history.start(0).read())
    assert "birds" in page
    assert "<svg" not in page


def test_a_prediction_is_shown_with_its_error(finished: ReportData) -> None:
    page = render_page(dataclasses.replace(finished, prediction=PredictedDuration(8.0, 10.0)))
    assert "+25 %" in page
    assert "took 10 s, predicted 8.0 s if no DNN stops early" in page


def test_a_simulation_needs_no_files() -> None:
    data = ReportData("what-if", "simulation", "done", duration_s=60.0, slot_names=("slot 0",))
    assert "simulation of 0 DNNs on 1 slot" in render_page(data)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_nothing_is_drawn_outside_of_its_chart(finished: ReportData, width: float) -> None:
    charts = draw_charts(finished, width)
    assert charts
    for drawing in charts.values():
        assert drawing.width == width
        for shape in drawing.shapes:
            if hasattr(shape, "height"):
                assert shape.x >= -0.1, (drawing.name, shape)
                assert shape.x + shape.width <= width + 0.7, (drawing.name, shape)
                assert shape.y + shape.height <= drawing.height + 0.1, (drawing.name, shape)


def test_a_chart_as_a_file_is_xml_of_its_own(finished: ReportData) -> None:
    for drawing in draw_charts(finished, WIDE).values():
        root = ET.fromstring(to_svg(drawing, standalone=True))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root[0].text == drawing.title


def test_a_run_of_another_kind_is_shown_in_its_own_words(finished: ReportData) -> None:
    a, b = finished.jobs
    jobs = (a, dataclasses.replace(b, state="done", cause="", best=0.25))
    page = render_page(dataclasses.replace(finished, jobs=jobs, run_kind="jobs", measure="best_val_loss"))
    assert "2 jobs on" in page
    assert "2 of 2</b><span>jobs done</span>" in page
    assert "least validation loss, b" not in page, "jobs may be of unlike apps"
    assert "counts its time in full" in page
    assert '<th class="number">best val loss</th>' in page
    table = page[page.index('<table id="jobs">') :]
    assert table.index('data-job="b"') < table.index('data-job="a"'), "less is better"


def test_an_evaluation_is_shown_with_its_verdicts(finished: ReportData, tmp_path: Path) -> None:
    assert 'id="evaluation"' not in render_page(finished)
    found = Evaluation(
        run="lab",
        data="data.test",
        is_test=False,
        num_samples=100,
        measure="accuracy",
        more_is_better=True,
        evaluated_at="2026-11-23T12:00:00.000Z",
        num_ranks=2,
        dnns=(
            EvaluatedDnn("small", "last", 3, {"loss": None, "accuracy": 0.8}, 0.25),
            EvaluatedDnn("large", "best", 12, {"loss": 0.5, "accuracy": 0.9}, 0.75),
        ),
        ensembles=(EvaluatedEnsemble("mean of all", 2, {"accuracy": 0.91}),),
        disagreement=0.125,
        left_out={"broken": "it failed in <training>"},
        num_broken=1,
        broken=("sample 3",),
    )
    page = render_page(dataclasses.replace(finished, evaluation=found))
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    section = page.partition('id="evaluation"')[2].partition("</section>")[0]
    assert "100 samples of data.test, 2026-11-23 12:00 UTC" in " ".join(section.split())
    assert "The mean of all (2 DNNs) beats the best DNN, large: accuracy 0.9100 and 0.9000." in section
    assert "have decided when DNNs stop" in section
    assert "it failed in &lt;training&gt;" in section
    assert "Left out: 1 sample: sample 3" in section
    assert section.count("<tr") == 4


def test_members_of_an_evaluated_ensemble_are_drawn_with_tables_behind(finished: ReportData) -> None:
    bins = ((60, 0.6, 0.5), (40, 0.9, 0.8))
    dnns = tuple(
        EvaluatedDnn(
            f"dnn-{i}",
            "best",
            3,
            {"accuracy": 0.8},
            None,
            {"calibration_error": 0.02},
            0.01 * (i - 3),
            bins,
            bins,
        )
        for i in range(40)
    )
    found = Evaluation(
        "lab",
        "data.test",
        True,
        100,
        "accuracy",
        True,
        "2026-11-23T12:00:00.000Z",
        2,
        dnns,
        (EvaluatedEnsemble("mean of all", 40, {"accuracy": 0.91}, reliability=bins),),
    )
    few = dataclasses.replace(found, dnns=dnns[:5], distances=((0.0, 0.2, 0.1, 0.2, 0.3),) * 5)
    for evaluation in (found, few):
        data = dataclasses.replace(finished, evaluation=evaluation)
        page = render_page(data)
        balance = Balance()
        balance.feed(page)
        assert balance.open == []
        for width in (WIDE, NARROW):
            charts = draw_charts(data, width)
            names = [shape.text for shape in charts["members"].shapes if hasattr(shape, "text")]
            assert names.count("dnn-0") >= 1
            assert f"{MINUS}0.0300" in names
            panels = [shape.text for shape in charts["reliability"].shapes if hasattr(shape, "text")]
            assert "mean of all (40)" in panels
    assert "differences as a table" in page
    assert "accuracy by confidence as a table" in page
    assert page.count("<td>calibrated</td>") == 1  # of the best DNN
