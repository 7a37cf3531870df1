"""`hpcbal forecast`: the table, what follows from it, its files, and what it refuses."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from traces import trace_of_steps, write_trace

from hpcbal.cli import main
from hpcbal.forecast import Resource, Trace, TracedOperation
from hpcbal.forecast.overhead import REPEATS, SIZES, calibrate

Capture = pytest.CaptureFixture[str]

MEGABYTE = 1_000_000


def trace_of(batch_size: int = 32, compute_s: float = 0.05, *, splits: bool = False) -> Trace:
    """Two variables, so that two servers can share them."""
    operations = [
        TracedOperation("receive a", Resource.DOWNLINK, (), MEGABYTE, 0, "a"),
        TracedOperation("receive b", Resource.DOWNLINK, (), MEGABYTE, 0, "b"),
        TracedOperation("compute", Resource.WORKER, (0, 1)),
        TracedOperation("send a", Resource.UPLINK, (2,), MEGABYTE, 0, "a"),
        TracedOperation("send b", Resource.UPLINK, (2,), MEGABYTE, 0, "b"),
        TracedOperation("apply a", Resource.SERVER, (3,), 0, 0, "a"),
        TracedOperation("apply b", Resource.SERVER, (4,), 0, 0, "b"),
    ]
    steps = [[0.0, 0.0, compute_s * (1 + 0.02 * i), 0.0, 0.0, 1e-3, 1e-3] for i in range(5)]
    trace = trace_of_steps(operations, steps, batch_size)
    return Trace(trace.operations, trace.durations_s, batch_size, splits)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, trace_of())
    return path


def hpcbal(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    try:
        code = main(["forecast", *map(str, arguments)])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def figures(capsys: Capture, *arguments: object) -> Any:
    code, out, err = hpcbal(capsys, *arguments, "--steps", 200, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_link_limits_at_last_and_the_knee_is_where_it_begins(trace: Path, capsys: Capture) -> None:
    # 2 MB in each direction at 100 MB/s: at most 50 steps per second. Alone a worker needs about 93 ms.
    found = figures(capsys, "--trace", trace, "--bandwidth", "100MB/s", "--workers", "1-12")
    rows = found["rows"]
    assert [row["workers"] for row in rows] == list(range(1, 13))
    assert rows[0]["samples_per_s"]["value"] == pytest.approx(32 / (0.052 + 0.041), rel=0.02)
    assert rows[0]["speedup"]["value"] == pytest.approx(1.0)
    assert rows[0]["limit"] == "computing"
    assert 0.8 * 32 * 50 < rows[-1]["samples_per_s"]["value"] < 1.01 * 32 * 50
    assert rows[-1]["limit"] == "links"
    assert 0.8 < rows[-1]["uplink_use"]["value"] <= 1.0
    assert rows[-1]["step_s"]["value"] == pytest.approx(12 * 32 / rows[-1]["samples_per_s"]["value"])
    (knee,) = found["knees"]
    assert knee["servers"] == 1
    assert 4 <= knee["workers"] <= 7
    for row in rows:
        for key in ("samples_per_s", "step_s", "communicating", "exposed", "downlink_use", "uplink_use"):
            assert row[key]["low"] <= row[key]["value"] <= row[key]["high"]
        assert row["exposed"]["value"] <= row["communicating"]["value"]


def test_json_has_these_keys_and_no_other(trace: Path, capsys: Capture) -> None:
    found = figures(capsys, "--trace", trace, "--bandwidth", "1Gbps", "--workers", "2")
    assert list(found) == [
        *("format", "name", "traces", "num_operations", "num_recorded_steps", "batch_size", "bandwidth"),
        *("order", "links", "window_bytes", "parsing", "step_overhead_s", "steps", "seed", "rows", "knees"),
        "wanted",
    ]
    (row,) = found["rows"]
    assert list(row) == [
        *("workers", "servers", "samples_per_s", "step_s", "communicating", "exposed", "downlink_use"),
        *("uplink_use", "speedup", "limit", "gains"),
    ]
    assert found["bandwidth"] == 125e6
    assert found["window_bytes"] == 28e6
    assert found["wanted"] is None


def test_a_second_server_doubles_what_the_links_carry(trace: Path, capsys: Capture) -> None:
    found = figures(capsys, "--trace", trace, "--bandwidth", "50MB/s", "--workers", "16", "--servers", "1,2")
    one, two = found["rows"]
    assert (one["servers"], two["servers"]) == (1, 2)
    ratio = two["samples_per_s"]["value"] / one["samples_per_s"]["value"]
    assert ratio == pytest.approx(2.0, rel=0.1)


def test_the_cheapest_machines_reach_what_is_wanted(trace: Path, capsys: Capture) -> None:
    options = ("--trace", trace, "--bandwidth", "100MB/s", "--workers", "1-8", "--servers", "1,2")
    found = figures(capsys, *options, "--wanted", 1000)
    choice = found["wanted"]
    enough = [row for row in found["rows"] if row["samples_per_s"]["value"] >= 1000]
    assert choice["cost"] == min(row["workers"] + row["servers"] for row in enough)
    dear = figures(capsys, *options, "--wanted", 1000, "--prices", "1,100")["wanted"]
    assert dear["servers"] == 1
    assert dear["cost"] == dear["workers"] + 100
    none = figures(capsys, *options, "--wanted", 1e6)["wanted"]
    assert (none["workers"], none["servers"], none["cost"]) == (None, None, None)
    code, out, _ = hpcbal(capsys, *options, "--steps", 100, "--wanted", 1e6)
    assert code == 0
    assert "cheapest for 1e+06 samples/s: nothing in the table reaches it" in out


def test_the_same_seed_gives_the_same_forecast(trace: Path, capsys: Capture) -> None:
    options = ("--trace", trace, "--bandwidth", "1Gbps", "--workers", "3")
    first, again, other = (figures(capsys, *options, "--seed", seed) for seed in (1, 1, 2))
    assert first == again
    assert first["rows"] != other["rows"]


def test_a_larger_batch_computes_longer(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    options = ("--bandwidth", "1GB/s", "--workers", "1", "--batch-size", "64")
    doubled = figures(capsys, "--trace", trace, *options)
    assert doubled["batch_size"] == 64
    assert doubled["rows"][0]["step_s"]["value"] == pytest.approx(2 * 0.052 + 0.006, rel=0.02)
    larger = tmp_path / "larger.jsonl"
    write_trace(larger, trace_of(96, 0.07))
    between = figures(capsys, "--trace", trace, "--trace", larger, *options)
    assert between["rows"][0]["step_s"]["value"] == pytest.approx(0.06 * 1.04 + 0.006, rel=0.02)


def test_parsing_costs_time_at_the_receiver(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    options = ("--trace", trace, "--bandwidth", "1GB/s", "--workers", "1")
    file = tmp_path / "parsing.json"
    file.write_text('{"s_per_byte": 1e-08, "s_per_transfer": 0.001}')
    without = figures(capsys, *options)["rows"][0]
    for given in ("1e-8,1e-3", file):
        row = figures(capsys, *options, "--parsing", given)["rows"][0]
        assert row["step_s"]["value"] - without["step_s"]["value"] == pytest.approx(4 * 0.011, rel=0.2)
        assert row["gains"]["parsing"] > 0.0


def test_what_the_trace_does_not_explain_is_added_to_each_step(trace: Path, capsys: Capture) -> None:
    options = ("--trace", trace, "--bandwidth", "100MB/s", "--workers", "1,2", "--measured", "320")
    found = figures(capsys, *options)
    assert found["step_overhead_s"] == pytest.approx(0.1 - (0.052 + 0.041), rel=0.2)
    assert found["rows"][0]["samples_per_s"]["value"] == pytest.approx(320, rel=0.01)
    code, out, _ = hpcbal(capsys, *options)
    assert code == 0
    assert out.splitlines()[1].endswith(" ms of each step are in no operation")
    code, out, err = hpcbal(capsys, *options[:-1], "1e6", "--json")
    assert (code, json.loads(out)["step_overhead_s"]) == (0, 0.0)
    assert err.startswith("warning: --measured: with 1e+06 samples/s a step takes 0.032 ms, less than the ")
    code, _, err = hpcbal(capsys, *options, "--trace", trace)
    assert (code, err) == (
        2,
        "hpcbal: --measured: works with one trace only; leave it out, or give one trace\n",
    )


def test_what_was_measured_is_compared_with_what_was_recorded_not_with_what_is_asked(
    trace: Path, tmp_path: Path, capsys: Capture
) -> None:
    options = ("--trace", trace, "--workers", "1")
    slow = figures(capsys, *options, "--bandwidth", "100MB/s", "--measured", "320")
    for changes in (("--order", "tic"), ("--bandwidth", "1GB/s", "--order", "tic")):
        asked = figures(capsys, *options, "--bandwidth", "100MB/s", *changes, "--measured", "320@100MB/s")
        assert asked["step_overhead_s"] == slow["step_overhead_s"]
    # 1.8 ms for 2 MB in each direction of which nothing hides behind computing, not 18 ms each.
    fast = figures(capsys, *options, "--bandwidth", "1GB/s", "--measured", "320@100MB/s")["rows"][0]
    assert slow["rows"][0]["step_s"]["value"] - fast["step_s"]["value"] == pytest.approx(
        0.9 * 0.041, abs=4e-3
    )
    config = job_file(tmp_path)
    (tmp_path / "run").mkdir()
    write_trace(tmp_path / "run" / "operations.jsonl", trace_of(splits=True))
    recorded = figures(capsys, config, "--workers", "1", "--measured", "320")
    assert recorded["step_overhead_s"] > 0.0
    changed = [("--bandwidth", "1GB/s"), ("--links", "shared"), ("--links", "in_turn"), ("--order", "tic")]
    for changes in changed:
        asked = figures(capsys, config, "--workers", "1", "--measured", "320", *changes)
        assert asked["step_overhead_s"] == recorded["step_overhead_s"]


def test_one_number_of_workers_has_no_knee(trace: Path, capsys: Capture) -> None:
    options = ("--trace", trace, "--bandwidth", "1Gbps", "--workers", "2")
    assert figures(capsys, *options)["knees"] == []
    code, out, _ = hpcbal(capsys, *options)
    assert (code, "knee" in out) == (0, False)


def with_ctrl_c() -> None:
    """In the background of a shell without job control, all processes ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_long_forecast_soon(trace: Path) -> None:
    command = [sys.executable, "-m", "hpcbal", "forecast", "--trace", str(trace), "--bandwidth", "1Gbps"]
    with subprocess.Popen(
        [*command, "--workers", "1-200", "--steps", "50000"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=with_ctrl_c,
    ) as process:
        try:
            time.sleep(3.0)  # it simulates for minutes
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err


def test_the_calibration_is_what_parsing_reads(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "parsing.json"
    code, out, err = hpcbal(capsys, "--calibrate", file)
    assert (code, err) == (0, "")
    assert out.startswith("parsing: ")
    written = json.loads(file.read_text(encoding="utf-8"))
    options = ("--trace", trace, "--bandwidth", "1Gbps", "--workers", "1")
    assert figures(capsys, *options, "--parsing", file)["parsing"] == written
    code, _, err = hpcbal(capsys, "--calibrate", file, "--trace", trace)
    assert (code, err) == (
        2,
        "hpcbal: --calibrate: works alone; give its file with --parsing to a forecast\n",
    )


def test_the_calibration_finds_the_line_of_its_clock() -> None:
    ticks = iter([each for size in SIZES for _ in range(REPEATS) for each in (0.0, 1e-3 + 2e-9 * size)])
    found = calibrate(lambda: next(ticks))
    assert (found.s_per_byte, found.s_per_transfer) == pytest.approx((2e-9, 1e-3))


def job_file(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "job.yaml"
    job = {
        "kind": "paramserver",
        "app": "hpcbal.paramserver.apps:NMF",
        "args": {"rank": 4},
        "data": {"dataset": "hpcbal.paramserver.apps:generated_ratings", "args": {"num_users": 80}},
        "mini_batch": 32,
        "consistency": "async",
        "machines": [{"count": 2, "seconds_per_sample": 1e-3, "bandwidth": 100e6}],
        "output": {"dir": str(tmp_path / "run")},
    }
    path.write_text(yaml.safe_dump(job | changes))
    return path


def test_a_job_brings_its_trace_its_batch_size_and_its_machines(tmp_path: Path, capsys: Capture) -> None:
    config = job_file(tmp_path, mini_batch=64)
    (tmp_path / "run").mkdir()
    write_trace(tmp_path / "run" / "operations.jsonl", trace_of(splits=True))
    found = figures(capsys, config, "--workers", "1,16")
    assert (found["name"], found["batch_size"], found["bandwidth"]) == ("job", 64, None)
    assert found["window_bytes"] is None  # its transfers are not HTTP/2's
    assert 0.8 * 64 * 50 < found["rows"][1]["samples_per_s"]["value"] < 1.01 * 64 * 50
    slow = [
        {"seconds_per_sample": 1e-3, "bandwidth": 100e6},
        {"seconds_per_sample": 4e-3, "bandwidth": 100e6},
    ]
    unlike = figures(capsys, job_file(tmp_path, machines=slow, mini_batch=32), "--workers", "1-2")["rows"]
    added = 32 / (4 * 0.052 + 0.041)
    gain = unlike[1]["samples_per_s"]["value"] - unlike[0]["samples_per_s"]["value"]
    assert gain == pytest.approx(added, rel=0.15)


def test_the_page_and_the_timeline_are_whole(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    page, timeline = tmp_path / "forecast.html", tmp_path / "timeline.json.gz"
    options = ("--trace", trace, "--bandwidth", "1Gbps", "--workers", "1-3", "--servers", "1,2")
    for _ in range(2):  # its own files are written anew
        code, _, err = hpcbal(capsys, *options, "--steps", 50, "--html", page, "--timeline", timeline)
        assert (code, err) == (0, f"hpcbal: wrote {timeline}\nhpcbal: wrote {page}\n")
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 6  # three charts, wide and narrow
    assert "http" not in text.replace("Content-Security-Policy", "").replace("http-equiv", "")
    assert "<script" not in text
    events = json.loads(gzip.decompress(timeline.read_bytes()))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    tracks = {event["args"]["name"] for event in events if event["name"].endswith("_name")}
    assert {"worker 0", "worker 2", "worker", "downlink 0", "uplink 1", "server 1"} <= tracks
    assert {"receive a", "compute", "apply b"} <= {each["name"] for each in slices}
    assert all(each["dur"] >= 0.0 for each in slices)


@pytest.mark.parametrize(
    ("option", "what"), [("--timeline", "timeline"), ("--html", "page"), ("--calibrate", "calibration")]
)
def test_the_trace_is_not_replaced_by_an_answer(option: str, what: str, trace: Path, capsys: Capture) -> None:
    recorded = trace.read_bytes()
    options = () if what == "calibration" else ("--trace", trace, "--bandwidth", "1Gbps", "--workers", 2)
    code, out, err = hpcbal(capsys, *options, option, trace)
    assert (code, out) == (2, "")
    assert err == f"hpcbal: {trace}: exists, and is no {what} of hpcbal; choose another name, or remove it\n"
    assert trace.read_bytes() == recorded


def test_one_number_of_workers_has_a_page_too(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "forecast.html"
    code, _, err = hpcbal(
        capsys, "--trace", trace, "--bandwidth", "1Gbps", "--workers", 4, "--steps", 50, "--html", page
    )
    assert (code, err) == (0, f"hpcbal: wrote {page}\n")
    assert "1 server, 4 workers" in page.read_text(encoding="utf-8")


def test_what_is_added_to_steps_is_no_operation(trace: Path, capsys: Capture) -> None:
    options = ("--trace", trace, "--bandwidth", "1Gbps", "--workers", 1, "--steps", 50, "--measured", 5)
    _, out, _ = hpcbal(capsys, *options)
    assert out.startswith("trace: 7 operations, 5 recorded steps")


def test_the_table_names_the_knee_and_explains_itself(trace: Path, capsys: Capture) -> None:
    code, out, err = hpcbal(
        capsys, "--trace", trace, "--bandwidth", "100MB/s", "--steps", 100, "--wanted", 100
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "trace: 7 operations, 5 recorded steps, batches of 32 samples"
    assert lines[2].split()[:3] == ["workers", "servers", "samples/s"]
    assert sum(line.lstrip()[:1].isdecimal() for line in lines) == 16
    assert any(line.startswith("knee with 1 server: ") for line in lines)
    assert "cheapest for 100 samples/s: 1 worker and 1 server, cost 2" in lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "hpcbal: give CONFIG, or --trace FILE\n"),
        (("--trace", "none.jsonl"), "none.jsonl: cannot read the trace: No such file or directory\n"),
        (
            ("--trace", "TRACE"),
            "hpcbal: the bandwidth of servers is not known; give --bandwidth, such as 1Gbps\n",
        ),
        (("--trace", "TRACE", "--set", "seed=1"), "hpcbal: --set: works with CONFIG only; give CONFIG\n"),
        (
            ("--trace", "TRACE", "--bandwidth", "1Gbps", "--servers", "3"),
            "hpcbal: the trace has 2 variables, too few for 3 servers: each stays whole\n",
        ),
        (
            ("--trace", "TRACE", "--trace", "TRACE", "--bandwidth", "1Gbps"),
            "hpcbal: both traces have 32 samples per step; record another batch size\n",
        ),
        (
            ("--trace", "TRACE", "--bandwidth", "1Gbps", "--prices", "2,1"),
            "hpcbal: --prices: works with --wanted only; say how many samples per second are wanted\n",
        ),
        (
            ("--trace", "TRACE", "--bandwidth", "1Gbps", "--html", "/nowhere/page.html"),
            "hpcbal: /nowhere/page.html: there is no directory /nowhere; make it, or choose another place\n",
        ),
        (("--trace", "TRACE", "--seed", "-1"), "hpcbal: --seed: got -1, allowed: a whole number from 0 to "),
        (("--trace", "TRACE", "--bandwidth", "1"), "argument --bandwidth: got '1', allowed: a rate above 0"),
        (("--trace", "TRACE", "--bandwidth", "0bps"), "argument --bandwidth: got '0bps', allowed: a rate"),
        (("--trace", "TRACE", "--workers", "4-2"), "argument --workers: got '4-2', allowed: N or N-N"),
        (
            ("--trace", "TRACE", "--workers", "-1"),
            "argument --workers: got '-1', allowed: N or N-N, 1 or more",
        ),
        (("--trace", "TRACE", "--workers", "1-" + "9" * 5000), "', allowed: N or N-N, 1 or more, ascending"),
        (
            ("--trace", "TRACE", "--bandwidth", "1Gbps", "--steps", "1000000000000"),
            "0 steps of all workers together are too many, allowed: 20000000; simulate fewer steps or ",
        ),
        (
            ("--trace", "TRACE", "--bandwidth", "1Gbps", "--batch-size", "9" * 400),
            "', allowed: a whole number, 1 to 9007199254740992\n",
        ),
        (("--trace", "TRACE", "--measured", "3@4"), "argument --measured: got '4', allowed: a rate above 0"),
        (
            ("--trace", "TRACE", "--measured", "@1Gbps"),
            "argument --measured: got '', allowed: a number above",
        ),
        (("--trace", "TRACE", "--workers", "1-9999"), "ascending, at most 4096"),
        (("--trace", "TRACE", "--window", "0MB"), "argument --window: got '0MB', allowed: off, or a size"),
        (
            ("--trace", "TRACE", "--parsing", "1,-2"),
            "argument --parsing: got '1,-2', allowed: a file, or two",
        ),
        (("--trace", "TRACE", "--parsing", "no"), "no: cannot read what parsing costs: No such file"),
        (("--trace", "TRACE", "--wanted", "nan"), "argument --wanted: got 'nan', allowed: a number above 0"),
        (("--trace", "TRACE", "--prices", "1"), "argument --prices: got '1', allowed: two numbers above 0"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_code_2(
    options: tuple[str, ...],
    message: str,
    trace: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = hpcbal(capsys, *(str(trace) if each == "TRACE" else each for each in options))
    assert (code, out) == (2, "")
    assert message in err


def test_jobs_that_cannot_be_forecast_say_so(tmp_path: Path, capsys: Capture) -> None:
    config = job_file(tmp_path)
    code, _, err = hpcbal(capsys, config)
    assert code == 2
    assert "operations.jsonl: no such trace; record it with 'hpcbal profile" in err
    code, _, err = hpcbal(capsys, job_file(tmp_path, consistency="sync"))
    assert code == 2
    assert "consistency: a forecast is of workers that run freely; set it to async" in err
