"""The ledger: only appended to, torn ends tolerated, counted over all starts."""

import json
import math

import numpy as np
import pytest

from hpcbal.control.messages import GroupPlan
from hpcbal.errors import OutputError
from hpcbal.telemetry import Ledger, read_ledger
from hpcbal.values import Position


def test_events_come_back_in_order_with_the_ledgers_own_fields(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        assert ledger.append("started", host="node1") == 0
        assert ledger.append("finished", durable=True, outcome="done") == 1
    started, finished = read_ledger(path)
    assert (started["schema"], started["seq"], started["event"], started["host"]) == (
        1,
        0,
        "started",
        "node1",
    )
    assert (finished["seq"], finished["outcome"]) == (1, "done")
    assert finished["time"].endswith("Z")
    assert started["time"] <= finished["time"]


def test_an_event_is_in_the_file_at_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("started")
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == 1
    ledger.close()


def test_the_count_goes_on_over_starts(tmp_path):
    for expected in (0, 1, 2):
        with Ledger(tmp_path / "ledger.jsonl") as ledger:
            assert ledger.append("started") == expected


@pytest.mark.parametrize("num_lost", [1, 2, 10, 40])
def test_a_torn_last_line_is_left_out_and_a_later_start_removes_it(tmp_path, num_lost, caplog):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        for _ in range(3):
            ledger.append("epoch", dnn="a" * 30)
    path.write_bytes(path.read_bytes()[:-num_lost])
    whole = 3 if num_lost == 1 else 2  # without its line end a line is still whole
    assert len(read_ledger(path)) == whole
    with Ledger(path) as ledger:
        assert ledger.append("started") == whole
    events = read_ledger(path)
    assert [event["seq"] for event in events] == list(range(whole + 1))
    assert events[-1]["event"] == "started"
    assert caplog.text.count("not a whole line") == (num_lost > 1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == events


def test_a_ledger_cut_at_any_byte_loses_only_what_was_cut(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        for number in range(3):
            ledger.append("epoch", text="}{" * number)
    data = path.read_bytes()
    ends = [index for index, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        num_whole = sum(end <= cut for end in ends)
        assert len(read_ledger(path)) == num_whole
        with Ledger(path) as ledger:
            assert ledger.append("more") == num_whole


def test_values_of_the_run_become_strict_json(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(
            "round",
            groups=(GroupPlan("a", (0, 1)),),
            start={"a": Position(3, 7)},
            rate=np.float32(0.5),
            loss=math.nan,
            gpus=np.arange(2),
            path=tmp_path,
            names={"b", "a"},
        )
    (event,) = read_ledger(path)
    assert event["groups"] == [{"dnn_id": "a", "gpus": [0, 1]}]
    assert event["start"] == {"a": {"pass_index": 3, "offset": 7}}
    assert (event["rate"], event["loss"], event["gpus"], event["names"]) == (0.5, None, [0, 1], ["a", "b"])
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"not JSON: {word}"))


def test_a_field_with_a_name_of_the_ledgers_own_is_refused(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger, pytest.raises(ValueError, match="seq"):
        ledger.append("started", seq=3)


def test_a_file_that_cannot_be_opened_is_told(tmp_path):
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(OutputError, match=r"ledger\.jsonl: cannot open the ledger: Is a directory"):
        Ledger(tmp_path / "ledger.jsonl")


def test_a_torn_line_of_any_length_is_removed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append("one")
        ledger.append("two", text="x" * 200_000)
    path.write_bytes(path.read_bytes()[:-9])
    with Ledger(path):
        pass
    (event,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert event["event"] == "one"


def test_a_failed_append_leaves_nothing_in_the_file(tmp_path, monkeypatch):
    from hpcbal.telemetry.streams import ledger as module

    def write_a_part(file, data):
        file.write(data[:20])
        raise OSError(28, "No space left on device")

    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append("one")
        monkeypatch.setattr(module, "write_all", write_a_part)
        with pytest.raises(OutputError, match="No space left on device"):
            ledger.append("two")
        monkeypatch.undo()
        assert (tmp_path / "ledger.jsonl").read_bytes().endswith(b"\n")
        ledger.append("three")
    events = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [(event["seq"], event["event"]) for event in events] == [(0, "one"), (1, "three")]


def test_no_file_is_an_empty_ledger(tmp_path):
    assert read_ledger(tmp_path / "ledger.jsonl") == []
