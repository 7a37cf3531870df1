"""`hpcbal simulate` for a job on parameter servers: what it predicts, and what it must be told."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcbal.cli import main
from hpcbal.events.line import Line
from hpcbal.telemetry.ledger.file import Ledger, scan_ledger
from hpcbal.telemetry.ledger.job_lines import JobEpochLine, RolesAssignedLine, WorkerFacts

Capture = pytest.CaptureFixture[str]

SECONDS, BANDWIDTH = 2e-3, 1e6


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Eight equal machines, of which far too few work: turns compute much longer than they communicate."""
    return written(tmp_path)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The only row of that configuration, as it is."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["simulate", str(written(tmp_path_factory.mktemp("simulated"))), "--json"]) == 0
    (row,) = json.loads(out.getvalue())["rows"]
    return row


def written(tmp_path: Path) -> Path:
    """Write the file of those machines, and return its path."""
    path = tmp_path / "job.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "kind": "paramserver",
                "app": "hpcbal.paramserver.apps:NMF",
                "args": {"rank": 4},
                "data": {
                    "dataset": "hpcbal.paramserver.apps:generated_ratings",
                    "args": {"num_users": 800, "num_items": 200},
                },
                "mini_batch": 80,
                "consistency": {"stale": 1},
                "stop": {"max_epochs": 12},
                "objective": {"every": 12},
                "workers": 2,
                "servers": 6,
                "machines": [{"count": 8, "seconds_per_sample": SECONDS, "bandwidth": BANDWIDTH}],
                "output": {"dir": str(tmp_path / "run")},
            }
        )
    )
    return path


def hpcbal(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    code = main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows_of(capsys: Capture, *arguments: object) -> Any:
    code, out, err = hpcbal(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)["rows"]


def test_a_badly_configured_job_configures_itself(config: Path, capsys: Capture, simulated: Any) -> None:
    row = simulated
    (kept,) = rows_of(capsys, config, "--set", "tune.enabled=false")
    assert (row["num_executors"], row["num_epochs"]) == (8, 12)
    assert (row["start"]["num_workers"], row["start"]["num_servers"]) == (2, 6)
    assert row["end"]["num_workers"] > 2
    assert row["end"]["epoch_s"] < row["start"]["epoch_s"]
    assert row["seconds"] < kept["seconds"]
    assert row["executor_seconds"] == pytest.approx(8 * row["seconds"])
    assert kept["changes"] == []
    assert kept["start"] == kept["end"] == row["start"]
    # Two workers that only compute need at least this long.
    assert kept["start"]["epoch_s"] > 400 * SECONDS


def test_each_change_has_its_time_its_bytes_and_its_gain(simulated: Any) -> None:
    row, before = simulated, simulated["start"]
    assert row["changes"]
    for change in row["changes"]:
        assert 0 < change["start_s"] < change["start_s"] + change["seconds"] < row["seconds"]
        assert change["num_bytes"] > 0
        # Blocks cannot move faster than over all links at once.
        assert change["seconds"] >= change["num_bytes"] / (8 * BANDWIDTH)
        assert change["predicted_gain"] >= 0.05
        assert change["simulated_gain"] == pytest.approx(1 - change["after"]["epoch_s"] / before["epoch_s"])
        assert change["simulated_gain"] == pytest.approx(change["predicted_gain"], abs=0.15)
        before = change["after"]
    assert before == row["end"]


def test_executors_that_come_and_go_count_for_as_long_as_the_job_has_them(
    config: Path, capsys: Capture
) -> None:
    executors = {"start": 4, "schedule": [{"after_epoch": 6, "use": "all"}]}
    overrides = ["workers=auto", "servers=auto", f"executors={json.dumps(executors)}"]
    (row,) = rows_of(capsys, config, *(word for each in overrides for word in ("--set", each)))
    assert row["start"]["num_workers"] + row["start"]["num_servers"] == 4
    assert row["end"]["num_workers"] + row["end"]["num_servers"] > 4
    assert 4 * row["seconds"] < row["executor_seconds"] < 8 * row["seconds"]


def test_numbers_of_executors_side_by_side(config: Path, capsys: Capture) -> None:
    arguments = [config, "--set", "workers=auto", "--set", "servers=auto", "--slots", "4,8"]
    four, eight = rows_of(capsys, *arguments)
    assert (four["num_executors"], eight["num_executors"]) == (4, 8)
    assert eight["end"]["epoch_s"] < four["end"]["epoch_s"]
    code, out, _ = hpcbal(capsys, *arguments)
    assert code == 0
    assert "speeds: machines of the file" in out
    assert "costs: send_s 0.001, notice_s 0.001, control_s 0.001" in out


def test_the_text_says_what_changes_when_and_why(config: Path, capsys: Capture) -> None:
    code, out, _ = hpcbal(capsys, config)
    assert code == 0
    assert "2 workers, 6 servers" in out
    assert "changes with 8 executors:" in out
    assert "predicted to save" in out
    assert "trust hpcbal simulate more than hpcbal plan: it plays each message" in out


def test_the_same_command_gives_the_same_numbers(config: Path, capsys: Capture, simulated: Any) -> None:
    assert rows_of(capsys, config) == [simulated]


def test_costs_take_time(config: Path, capsys: Capture) -> None:
    (free,) = rows_of(
        capsys, config, *(w for n in ("send_s", "notice_s", "control_s") for w in ("--cost", f"{n}=0"))
    )
    (slow,) = rows_of(capsys, config, "--cost", "turn_s=0.05")
    assert slow["start"]["epoch_s"] > free["start"]["epoch_s"] + 10 * 0.05 * 0.9


def test_without_machines_an_earlier_run_must_have_measured(
    config: Path, tmp_path: Path, capsys: Capture
) -> None:
    values = yaml.safe_load(config.read_text())
    del values["machines"]
    config.write_text(yaml.safe_dump(values | {"consistency": "async"}))
    code, out, err = hpcbal(capsys, config, "--slots", "8")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "machines: has no seconds_per_sample" in err
    assert "run the job for two epochs first" in err

    model = 200 * 4 * 8
    start = RolesAssignedLine(("worker", "server"), (8, 0), (0, 8), 800, model, None)
    worker = WorkerFacts(1, 10, 800, 800 * SECONDS, 10 * 2 * model / BANDWIDTH, 0.1, 10 * 2 * model)
    lines: list[Line] = [start, *(JobEpochLine("job", n, 1.8, {}, (worker,)) for n in (1, 2))]
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "ledger.jsonl"
    with Ledger(file, scan_ledger(file)) as written:
        for line in lines:
            written.append(line)
    (row,) = rows_of(capsys, config, "--slots", "8", "--set", "workers=1", "--set", "servers=1")
    # One worker takes turns with one server, as in the run.
    assert row["start"]["epoch_s"] == pytest.approx(800 * SECONDS + 10 * 2 * model / BANDWIDTH, rel=0.05)
    assert "what the run in" in hpcbal(capsys, config, "--slots", "8")[1]
    # Real links are shared, so a server's that is full carries less than it would in turn.
    busy = [config, "--slots", "8", "--set", "workers=6", "--set", "servers=1", "--set", "tune.enabled=false"]
    (shared,), (alone,) = (rows_of(capsys, *busy, "--set", f"links={links}") for links in ("auto", "in_turn"))
    assert shared["start"]["epoch_s"] > 1.1 * alone["start"]["epoch_s"]
    # Many executors have links in turn.
    many = [*busy, "--slots", "17", "--json"]
    asked, in_turn = (hpcbal(capsys, *many, "--set", f"links={links}") for links in ("auto", "in_turn"))
    assert json.loads(asked[1])["rows"] == json.loads(in_turn[1])["rows"]
    assert "more than 16 executors are simulated with links" in asked[2]
    assert in_turn[2] == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--slots", "1"], "--slots: got 1 executor, allowed: 2 or more, a worker and a server"),
        (["--slots", "4"], "do not fit 4 executors"),
        (["--paradigm", "global"], "--paradigm: works with ensembles only"),
        (["--seeds", "5", "--samples", "9"], "--seeds, --samples: works with ensembles only"),
        (["--cost", "load_s=1"], "--cost: got 'load_s', allowed for a parameter-server job: send_s"),
        (["--cost", "turn_s=-1"], "--cost: turn_s: got -1.0, allowed: >= 0"),
        (["--set", "machines.0.bandwidth=null"], "machines.0: has no bandwidth"),
        (["--set", "args.rank=0"], "rank"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    config: Path, capsys: Capture, arguments: list[str], problem: str
) -> None:
    code, out, err = hpcbal(capsys, config, *arguments)
    assert (code, out) == (2, "")
    assert problem in err
    assert "Traceback" not in err
