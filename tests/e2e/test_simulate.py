"""`hpcbal simulate` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbal.cli import main
from hpcbal.telemetry.views.results import ResultRow, write_results

pytestmark = pytest.mark.e2e

CONFIG = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 4}}
dnns: [{name: fast, model: "m:f"}, {name: half, model: "m:f"}, {name: slow, model: "m:f"}]
backend: {name: emulated, rates: {fast: {1: 100, 2: 190}, half: {1: 50, 2: 95}, slow: {1: 25, 2: 49}}}
slots: {per_node: 2}
"""
PARADIGMS = ["global", "local", "homogeneous", "elastic", "independent"]


Capture = pytest.CaptureFixture[str]


def hpcbal(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    try:
        code = main(["simulate", *arguments])
    except SystemExit as end:  # by argparse
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def simulated(capsys: Capture, *arguments: str) -> Any:
    code, out, err = hpcbal(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A configuration in the working directory."""
    (tmp_path / "run.yaml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "run.yaml"


def test_a_preset_under_every_schedule(capsys: Capture) -> None:
    arguments = ("--preset", "fleet-summitdev", "--slots", "160", "--paradigm", "all", "--seeds", "1")
    result = simulated(capsys, *arguments)
    rows = result["rows"]
    assert [(row["slots"], row["paradigm"]) for row in rows] == [(160, name) for name in PARADIGMS]
    for row in rows:
        assert row["makespan_s"] >= row["lower_bound_s"] > 0.0
        assert (row["published_s"] is not None) == (row["paradigm"] == "global")
    assert rows[PARADIGMS.index("independent")]["speedup_vs_independent"] == 1.0
    assert 0.9 < result["kept_per_added_node"] < 1.0
    assert result["published"] == "[FLEET] Table 4"


def test_a_configuration_with_more_slots_and_fewer(capsys: Capture, config: str) -> None:
    rows = simulated(capsys, config, "--samples", "1000", "--slots", "1,2,4")["rows"]
    assert [(row["slots"], row["paradigm"]) for row in rows] == [(n, "auto") for n in (1, 2, 4)]
    makespans = [row["makespan_s"] for row in rows]
    assert makespans == sorted(makespans, reverse=True)
    # On one slot: 4 epochs of 800 training and 200 validation samples, one DNN after the other.
    one_pass = sum((800 + 200 / 3) / rate for rate in (100, 50, 25))
    assert makespans[0] == pytest.approx(4 * one_pass)


def test_the_dataset_reports_its_size(capsys: Capture, config: str) -> None:
    Path("mine.py").write_text("from hpcbal.data import digits as data\n", encoding="utf-8")
    given = simulated(capsys, config, "--samples", "1797")["rows"]
    assert simulated(capsys, config)["rows"] == given
    opened = simulated(capsys, config, "--set", "data.dataset=mine:data")["rows"]
    assert opened[0]["makespan_s"] == pytest.approx(given[0]["makespan_s"])


TWO = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4}
dnns:
  - {name: fast, model: "m:f", stop: {max_epochs: 8, PATIENCE}}
  - {name: half, model: "m:f", stop: {max_epochs: 4, PATIENCE}}
backend: {name: emulated, rates: {fast: {1: 100, 2: 180}, half: {1: 50, 2: 90}}}
slots: {per_node: 2}
"""


@pytest.mark.parametrize(("patience", "over_bound"), [("null", 1.0), ("3", 1.11)])
def test_decisions_know_how_long_a_dnn_trains_that_cannot_end_early(
    capsys: Capture, tmp_path: Path, config: str, patience: str, over_bound: float
) -> None:
    """Side by side the two end together; if both may end early, the slower one gets all slots first."""
    (tmp_path / config).write_text(TWO.replace("PATIENCE", f"patience: {patience}"))
    (row,) = simulated(capsys, config, "--samples", "1000", "--slots", "2", "--paradigm", "elastic")["rows"]
    assert row["over_lower_bound"] == pytest.approx(over_bound, abs=0.01)


def test_epochs_can_be_drawn(capsys: Capture, config: str) -> None:
    most = simulated(capsys, config, "--samples", "1000")["rows"][0]
    drawn = simulated(capsys, config, "--samples", "1000", "--epochs", "0.25")["rows"][0]
    assert drawn["makespan_s"] < most["makespan_s"]


def test_epochs_can_be_those_of_an_earlier_run(capsys: Capture, config: str) -> None:
    results = [ResultRow("fast", "done", 1, None, 0.0, 0.0), ResultRow("half", "done", 2, None, 0.0, 0.0)]
    write_results("results.csv", results)
    arguments = (config, "--samples", "1000", "--slots", "1", "--epochs", "results.csv")
    row = simulated(capsys, *arguments)["rows"][0]
    assert row["makespan_s"] == pytest.approx((800 + 200 / 3) * (1 / 100 + 2 / 50 + 4 / 25))


def test_costs_can_be_given(capsys: Capture, config: str) -> None:
    arguments = (config, "--samples", "1000", "--slots", "1")
    free = simulated(capsys, *arguments)["rows"][0]["makespan_s"]
    row = simulated(capsys, *arguments, "--cost", "build_s=5", "--cost", "checkpoint_s=1")["rows"][0]
    assert row["makespan_s"] == pytest.approx(free + 3 * 6)


def test_rates_can_vary_over_seeds(capsys: Capture, config: str) -> None:
    arguments = (config, "--samples", "1000", "--slots", "1")
    fixed = simulated(capsys, *arguments)["rows"][0]
    varied = simulated(capsys, *arguments, "--rate-deviation", "0.1")["rows"][0]
    assert fixed["makespan_deviation_s"] == pytest.approx(0.0, abs=1e-9)
    assert varied["makespan_deviation_s"] > 0.01 * varied["makespan_s"]


def test_a_group_that_spans_more_nodes_than_it_must_is_slower(capsys: Capture, config: str) -> None:
    Path("three.yaml").write_text(
        CONFIG.replace("{1: 100, 2: 190}", "{1: 50, 2: 100}")
        .replace("{1: 50, 2: 95}", "{1: 50, 2: 100}")
        .replace("{1: 25, 2: 49}", "{1: 50, 2: 100}")
        .replace("per_node: 2", "per_node: 3"),
        encoding="utf-8",
    )
    arguments = ("three.yaml", "--samples", "1000", "--slots", "6")  # 2 + 2 + 2 slots on nodes of 3
    free = simulated(capsys, *arguments)["rows"][0]["makespan_s"]
    row = simulated(capsys, *arguments, "--kept-per-node", "0.8")["rows"][0]
    assert row["makespan_s"] == pytest.approx(free / 0.8)  # one of the three is split, the others wait


def test_a_table_for_people(capsys: Capture, config: str) -> None:
    code, out, err = hpcbal(capsys, config, "--samples", "1000", "--paradigm", "all")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "run: 3 DNNs, nodes of 2 slots, mean of 5 seeds, seconds"
    assert lines[2].split()[:4] == ["slots", "schedule", "makespan", "speed-up"]
    assert [line.split()[1] for line in lines[4 : 4 + len(PARADIGMS)]] == PARADIGMS
    assert "global, first seed:" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "hpcbal: give either CONFIG or --preset NAME"),
        (["run.yaml", "--preset", "fleet-summitdev"], "hpcbal: give either CONFIG or --preset NAME"),
        (["--preset", "none"], "hpcbal: preset: got 'none', allowed: fleet-summitdev"),
        (["--preset", "fleet-summitdev", "--samples", "3"], "hpcbal: --samples: allowed only with CONFIG"),
        (
            ["--preset", "fleet-summitdev", "--set", "alpha=1"],
            "hpcbal: --set alpha=1: unknown key of the preset",
        ),
        (["run.yaml", "--paradigm", "fast"], "hpcbal: --paradigm: got 'fast', allowed: global, local,"),
        (["run.yaml", "--slots", "0"], "argument --slots: got '0', allowed: a whole number, 1 or more"),
        (["run.yaml", "--epochs", "2"], "argument --epochs: got '2', allowed: a number above 0, at most 1"),
        (["run.yaml", "--epochs", "none.csv"], "hpcbal: none.csv: cannot read: No such file or directory"),
        (
            ["--preset", "fleet-summitdev", "--kept-per-node", "0.9"],
            "hpcbal: --kept-per-node: allowed only with",
        ),
        (
            ["--preset", "fleet-summitdev", "--rate-deviation", "1"],
            "hpcbal: --rate-deviation: allowed only with",
        ),
        (["run.yaml", "--kept-per-node", "0"], "argument --kept-per-node: got '0', allowed: a number above"),
        (["run.yaml", "--rate-deviation", "x"], "argument --rate-deviation: got 'x', allowed: a number, 0"),
        (["run.yaml", "--cost", "tea_s=3"], "hpcbal: --cost: got 'tea_s', allowed: build_s, load_s,"),
        (["run.yaml", "--cost", "load_s"], "argument --cost: got 'load_s', allowed: NAME=SECONDS"),
        (["run.yaml", "--cost", "load_s=-1"], "hpcbal: costs.load_s: got -1.0, allowed: seconds, 0 or more"),
        (["none.yaml"], "none.yaml: no such file; give the path of a YAML configuration"),
        (
            ["run.yaml", "--set", "backend={name: tensorflow}"],
            "hpcbal: no training rates: runs/run/profile.json",
        ),
    ],
)
def test_wrong_input_is_reported_in_a_sentence(
    arguments: list[str], message: str, capsys: Capture, config: str
) -> None:
    code, out, err = hpcbal(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_the_output_holds_figures_charts_and_pages(capsys: Capture, config: str) -> None:
    arguments = (config, "--samples", "1000", "--slots", "2", "--paradigm", "global,independent")
    code, out, err = hpcbal(capsys, *arguments, "--json", "--output", "out")
    assert (code, json.loads(out)) == (0, json.loads(Path("out/simulation.json").read_text(encoding="utf-8")))
    names = {path.name for path in Path("out").iterdir()}
    assert err == f"hpcbal: wrote {len(names)} files to out\n"
    assert {"speedup.svg", "makespan.svg", "waiting.svg", "global-2.html", "independent-2.html"} <= names
    page = Path("out/global-2.html").read_text(encoding="utf-8")
    assert "simulation of 3 DNNs on 2 slots" in page
    assert "global on 2 slots: " in Path("out/speedup.svg").read_text(encoding="utf-8")


def test_an_output_that_is_a_file_is_reported(capsys: Capture, config: str) -> None:
    code, _, err = hpcbal(capsys, config, "--samples", "1000", "--output", config)
    assert code == 2
    assert err.startswith("hpcbal: run.yaml: cannot make the directory")
