"""The report's page in a real browser, on a desktop and on a phone: legible, and nothing is fetched."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcbal.report.model import (
    EpochPoint,
    GroupWait,
    JobReport,
    LeftOut,
    Overhead,
    PredictedDuration,
    Preprocessing,
    RateComparison,
    ReportData,
    RoundReport,
    SharePoint,
    SlotSpan,
    SlotUse,
    WorkReport,
)
from hpcbal.report.page.page import render_page

pytestmark = pytest.mark.e2e

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = {"desktop": 1280, "phone": 390}

# Looks at the page from inside, when it has been drawn, and sends what it found to the frame around it.
PROBE = """
<script>
const seen = {violations: [], errors: []};
addEventListener("securitypolicyviolation", (event) => seen.violations.push(event.blockedURI));
addEventListener("error", (event) => seen.errors.push(String(event.message || event.target.src)), true);
addEventListener("load", () => setTimeout(() => {
  const shown = (element) => element.getClientRects().length > 0 && element.getBoundingClientRect().width > 0;
  seen.width = innerWidth;
  seen.page_width = document.documentElement.scrollWidth;
  seen.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
  seen.charts = {}; seen.sticking_out = []; seen.overlapping = []; seen.small = [];
  for (const svg of [...document.querySelectorAll("svg")].filter(shown)) {
    const name = svg.closest("section").id, box = svg.getBoundingClientRect();
    seen.charts[name] = {width: box.width, height: box.height, shapes: svg.childElementCount};
    const texts = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    for (const [text, place] of texts) {
      if (place.left < box.left - 1 || place.right > box.right + 1 || place.bottom > box.bottom + 1)
        seen.sticking_out.push(`${name}: ${text.textContent}`);
      if (text.getAttribute("font-size") * box.width / svg.viewBox.baseVal.width < 9)
        seen.small.push(`${name}: ${text.textContent}`);
    }
    for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
      const [a, b] = [texts[i][1], texts[j][1]];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 4)
        seen.overlapping.push(`${name}: ${texts[i][0].textContent} | ${texts[j][0].textContent}`);
    }
  }
  seen.broken_words = [...document.querySelectorAll("td, th")].filter(shown).filter((cell) => {
    const words = document.createRange();
    const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode();
    if (!text || cell.className === "long" || text.data.length > 36) return false;
    words.selectNodeContents(text);
    return !/\\s/.test(text.data.trim()) && words.getClientRects().length > 1;
  }).map((cell) => cell.textContent);
  seen.settings = [...document.querySelectorAll("#jobs th, #jobs td[data-key]")].filter(shown)
    .map((cell) => cell.dataset.key ?? cell.textContent);  // titles, or in front of the cells of a block
  const hit = [...document.querySelectorAll("svg [data-job]")].find(shown);
  const click = () => hit.dispatchEvent(new MouseEvent("click", {bubbles: true}));
  if (hit) {
    click();
    seen.followed = [...document.querySelectorAll(".on")].map((element) => element.dataset.job);
    seen.wanted = hit.dataset.job;
    click();
    seen.followed_after = document.querySelectorAll(".on").length;
  }
  parent.postMessage(JSON.stringify(seen), "*");
}, 50));
</script>
"""

# A window cannot be as narrow as a phone, a frame can.
FRAME = """<!DOCTYPE html>
<iframe src="%s" style="border: 0; width: %dpx; height: 3000px"></iframe><div id="seen"></div>
<script>addEventListener("message", (event) => {
  document.getElementById("seen").textContent = event.data;
});</script>
"""


@pytest.fixture(scope="session")
def browser() -> str:
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    pytest.fail(
        "no Chromium is on PATH, so the report's page cannot be looked at: install it (Debian: apt-get "
        "install chromium; scripts/test.sh does so itself when it runs as root on Debian)"
    )


def look(browser: str, page: str, width: int, folder: Path, inside: str = "") -> dict[str, Any]:
    """Open `page` in a window of `width` pixels, and return the findings of the probe."""
    assert "<body>" in page
    path = folder / "page.html"
    # First in the body, so that it hears of everything; the policy allows it beside the page's script.
    script = PROBE.strip().removeprefix("<script>").removesuffix("</script>")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    path.write_text(page.replace("<body>", f"<body>{PROBE}{inside}"), encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME % (path.name, width), encoding="utf-8")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-slot",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # what the browser itself would like to ask somebody
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1400,3100",
        "--virtual-time-budget=3000",
        "--dump-dom",
        frame.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<div id="seen">(.+?)</div>', done.stdout, flags=re.DOTALL)
    assert found is not None, f"the page was not drawn (exit code {done.returncode}):\n{done.stderr[-3000:]}"
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


def assert_legible_and_alone(seen: dict[str, Any], width: int, charts: set[str]) -> None:
    assert seen["width"] == width
    assert seen["page_width"] <= width, "the page can be scrolled sideways"
    assert set(seen["charts"]) == charts
    for name, chart in seen["charts"].items():
        assert chart["width"] > 0.8 * min(width, 560), name
        assert chart["height"] > 60, name
        assert chart["shapes"] > 5, name
    assert seen["sticking_out"] == []
    assert seen["overlapping"] == []
    assert seen["small"] == []
    assert seen["broken_words"] == []
    assert seen["errors"] == []
    assert seen["violations"] == []
    assert seen["resources"] == []


def many_dnns() -> ReportData:
    """120 DNNs on 160 slots in three starts, as a year's work of a group might look."""
    rng = random.Random(7)
    names = [f"densenet-{rng.choice([40, 121, 169])}-k{rng.choice([12, 24])}-{i:03d}" for i in range(120)]
    spans, rounds, start_s = [], [], 0.0
    for index in range(15):
        length_s = rng.uniform(900.0, 6000.0)
        chosen = rng.sample(names, 50)
        for i, name in enumerate(chosen):
            end_s = start_s + length_s * rng.uniform(0.6, 1.0)
            spans += [SlotSpan(3 * i + j, name, start_s, end_s) for j in range(rng.randint(1, 3))]
        rounds.append(RoundReport(index, start_s, start_s + length_s, 50, 8, rng.uniform(50.0, 900.0)))
        start_s += length_s + 5.0
    curves = {
        name: tuple(
            EpochPoint(
                e,
                {"val_accuracy": 0.93 - 0.5 / e - rng.uniform(0.0, 0.08), "val_loss": 1 / e, "loss": 0.9 / e},
            )
            for e in range(1, rng.randint(3, 40))
        )
        for name in names
    }
    failed = set(names[::17])
    detail = (
        "Traceback (most recent call last):\n  File x\nResourceExhaustedError: OOM with shape[128,256,36,36]"
    )
    jobs = tuple(
        JobReport(
            name,
            "failed" if name in failed else "pruned" if len(curves[name]) < 30 else "done",
            len(curves[name]),
            max(point.metrics["val_accuracy"] or 0.0 for point in curves[name]),
            4e3,
            9e3,
            "oom" if name in failed else "",
            detail if name in failed else "",
            curves[name],
            settings={
                "args.depth": name.split("-")[1],
                "optimizer.learning_rate": str(rng.choice([0.0001, 0.003, 0.1])),
                "optimizer.name": rng.choice(["sgd", "a_long_name_of_an_optimizer", "adamw"]),
                "args.dropout": str(round(rng.uniform(0.0, 0.5), 3)),
            },
        )
        for name in names
    )
    causes = [(5, "compute"), (6, "input"), (None, "collective")]
    waits = tuple(
        GroupWait(name, i, 8, *causes[i % 3], late_s=3000.0 / (i + 1), share=0.3, num_late=3, num_epochs=9)
        for i, name in enumerate(names[:20])
    )
    shares = {
        name: tuple(
            SharePoint(
                e, {slot: (1 + (slot + i) % 8 / e) / (8 + 28 / e) for slot in range(8 if e < 9 else 7)}
            )
            for e in range(1, 15)
        )
        for i, name in enumerate(names[:9])
    }
    use = tuple(
        SlotUse(slot, {"training": start_s * 0.7, "data": start_s * 0.1, "idle": start_s * 0.2})
        for slot in range(160)
    )
    rates = tuple(RateComparison(n, 1, r := rng.uniform(21, 176), r * rng.gauss(0.97, 0.04)) for n in names)
    return ReportData(
        name="bird-sounds-2026-densenet-ensemble",
        kind="run",
        state="done, some DNNs failed",
        duration_s=start_s,
        slot_names=tuple(f"node{i // 4:03d}:{i % 4}" for i in range(160)),
        started_at="2026-03-01T10:00:00.000Z",
        start_s=(0.0, start_s / 3, start_s / 2),
        jobs=jobs,
        rounds=tuple(rounds),
        spans=tuple(spans),
        use=use,
        rates=rates,
        waits=waits,
        works=tuple(WorkReport(n, 0, {0: 0.5, 159: 1.5}, 0.1, 0.25, 3) for n in names[:20]),
        left_out=tuple(LeftOut(name, 7, 900.0) for name in names[:3]),
        shares=shares,
        overheads=(Overhead("profiling", 0.012, "measuring"), Overhead("scheduling", 0.0001, "deciding")),
        preprocessing=Preprocessing(120.0, 3),
        prediction=PredictedDuration(start_s * 1.04, start_s),
        facts=(("nodes", "40"), ("device", "Tesla P100"), ("tensorflow", "2.18.1")),
    )


UNBALANCED = {"slots", "learning", "losses", "use", "rates", "preprocessing"}
ALL = {*UNBALANCED, "shares"}
OF_A_SEARCH = {*ALL, "settings", "rungs"}


@pytest.mark.parametrize("device", WIDTHS)
def test_a_large_ensemble_is_legible(browser: str, device: str, tmp_path: Path) -> None:
    seen = look(browser, render_page(many_dnns()), WIDTHS[device], tmp_path)
    assert_legible_and_alone(seen, WIDTHS[device], OF_A_SEARCH)
    assert set(seen["followed"]) == {seen["wanted"]}
    assert len(seen["followed"]) > 3  # in several charts and the table
    assert seen["followed_after"] == 0


@pytest.mark.parametrize("device", WIDTHS)
def test_the_table_of_a_sweep_breaks_no_word_and_shows_the_settings(
    browser: str, device: str, tmp_path: Path
) -> None:
    data = many_dnns()
    nine = data.jobs[:9]
    data = dataclasses.replace(
        data, jobs=nine, spans=(), rates=(), waits=(), works=(), shares={}, left_out=()
    )
    page = render_page(data)
    seen = look(browser, page, WIDTHS[device], tmp_path)
    assert_legible_and_alone(
        seen, WIDTHS[device], {"learning", "losses", "settings", "rungs", "use", "preprocessing"}
    )
    assert {"args.depth", "optimizer.learning_rate", "optimizer.name", "args.dropout"} <= {*seen["settings"]}
    table = page.partition('<table id="jobs"')[2].partition("</table>")[0]
    assert len({*re.findall("background:(#......)", table)}) == len(nine)  # each has a colour of its own


@pytest.mark.mpi
def test_the_page_of_a_real_run_is_legible(browser: str, finished: Any, tmp_path: Path) -> None:
    page = (finished.lab.out / "report.html").read_text(encoding="utf-8")
    for width in WIDTHS.values():
        assert_legible_and_alone(look(browser, page, width, tmp_path), width, {*UNBALANCED, "settings"})


@pytest.mark.mpi
def test_the_page_of_a_balanced_run_names_who_was_late_left_out_and_failed(
    browser: str, lab: Any, tmp_path: Path
) -> None:
    lab.configure(
        dnns=[
            {"name": "a", "model": "toys:toy", "batch_size": 24, "stop": {"max_epochs": 12}},
            {"name": "b", "model": "toys:toy", "args": {"trouble": "raise", "at": 3}},  # it cannot join a
        ],
        backend={
            "name": "emulated",
            "rates": {"a": {1: 800, 2: 1500, 3: 2000}, "b": {1: 200, 2: 220, 3: 240}},
            "workers": [{}, {}, {"launch_s": 0.1}],
        },
        schedule={"paradigm": "global", "delta": "1%"},
        balance={"policy": "fitted"},
    )
    done = lab.run()
    assert done.code == 3, done
    page = (lab.out / "report.html").read_text(encoding="utf-8")
    assert "RuntimeError: the layers do not fit" in page
    assert "<b>a</b> continued without slot 2" in page
    assert '<td class="slot" title="1 of 3 slots">slot 2</td><td>computed longer</td>' in page
    for width in WIDTHS.values():
        assert_legible_and_alone(look(browser, page, width, tmp_path), width, ALL)


def test_what_a_page_would_fetch_is_noticed_and_refused(browser: str, tmp_path: Path) -> None:
    inside = '<img src="http://127.0.0.1:9/pixel.png">'
    seen = look(browser, render_page(many_dnns()), 1280, tmp_path, inside=inside)
    assert seen["violations"] == ["http://127.0.0.1:9/pixel.png"]


def test_a_script_that_is_not_the_pages_own_does_not_run(browser: str, tmp_path: Path) -> None:
    inside = "<script>document.querySelector('main').remove()</script><p onclick='x()'>text</p>"
    seen = look(browser, render_page(many_dnns()), 1280, tmp_path, inside=inside)
    assert seen["violations"] == ["inline", "inline"]
    assert seen["charts"]
    assert seen["followed"], "the page's own script runs"
