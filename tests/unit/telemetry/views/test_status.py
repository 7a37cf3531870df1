"""status.json: its schema, and how it is shown to users."""

import contextlib
import json
import os

import pytest

from hpcbal.errors import InputError
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.read_status import read_status, render_status
from hpcbal.telemetry.views.status import PHASES, death_note, end_status, has_ended, write_status

NOW = 1_700_000_000.0


def a_status(**changes):
    status = new_status("six", 4, heartbeat_s=5.0, now=NOW)
    status.update(phase="training", round=2, busy_slots=3, host="elsewhere", **changes)
    status["pass"] = 7
    status["dnns"] = [
        {
            "name": "resnet",
            "state": "running",
            "epochs": 3,
            "max_epochs": 30,
            "metrics": {"val_accuracy": 0.91, "loss": None},
            "main_metric": "val_accuracy",
            "best": 0.93,
            "slots": [0, 1],
            "wall_time_s": 61.0,
            "slot_seconds": 122.0,
            "cause": "",
            "detail": "",
        },
        {
            "name": "densenet",
            "state": "failed",
            "epochs": 0,
            "max_epochs": 30,
            "metrics": {},
            "main_metric": "val_accuracy",
            "best": None,
            "slots": [],
            "wall_time_s": 0.0,
            "slot_seconds": 0.0,
            "cause": "nan",
            "detail": f'ValueError: the loss is NaN {"x" * 200}\nTraceback:\n  File "m.py", line 3\n',
        },
    ]
    status["preprocessing"] = {"preprocessors": 2, "samples_per_s": 1234.6, "bad_samples": 1}
    return status


def test_without_validation_the_status_shows_the_accuracy_of_training():
    status = a_status()
    resnet = status["dnns"][0]
    resnet |= {"metrics": {"accuracy": 0.5, "val_accuracy": None}, "main_metric": "accuracy"}
    resnet["best"] = 0.625
    text = render_status(status, now=NOW)
    head, line = (next(x for x in text.splitlines() if x.startswith(w)) for w in ("name", "resnet"))
    assert "train acc" in head
    assert line.split()[3:5] == ["0.5000", "0.6250"]


def test_a_status_is_written_with_its_time_and_read_back(tmp_path):
    status = a_status()
    write_status(tmp_path / "status.json", status, now=NOW + 12.5)
    read = read_status(tmp_path)
    assert read == json.loads((tmp_path / "status.json").read_text()) == status
    assert (read["elapsed_s"], read["updated_at"]) == (12.5, "2023-11-14T22:13:32.500Z")
    assert (read["schema"], read["pid"]) == (1, os.getpid())


def test_nothing_in_a_status_can_act_on_the_terminal():
    hostile = "\x1b[2J\r\x00\u202e"
    status = a_status(name=f"six{hostile}")
    for dnn in status["dnns"]:
        dnn.update(name=f"dnn{hostile}", cause=f"error{hostile}", detail=f"ValueError: {hostile}", slots=[0])
        dnn["straggler"] = {"slot": 0, "why": hostile, "late_s": 1.0}
    page = render_status(status, now=NOW + 3)
    assert all(line.isprintable() for line in page.split("\n"))
    assert page.count("\\u202e") >= 7


def test_people_see_phase_dnns_and_age():
    page = render_status(a_status(), now=NOW + 3)
    lines = page.splitlines()
    assert lines[0] == "six: training, round 2, pass 7, 3 of 4 slots busy, running for 0:00:00"
    assert lines[1] == "2 DNNs: 1 running, 1 failed; 2 preprocessors, 1235 samples/s; 1 bad sample left out"
    assert lines[5].split() == ["resnet", "running", "3/30", "0.9100", "0.9300", "0", "1", "0:01:01"]
    assert "nan: ValueError: the loss is NaN x" in lines[6], "the key line of the detail"
    assert lines[6].endswith("...")
    assert "as of 2023-11-14T22:13:20.000Z (3 s ago), elsewhere:" in page
    assert "WARNING" not in page
    assert max(map(len, lines)) < 240


@pytest.mark.parametrize(
    ("slot", "why", "line"),
    [
        (1, "input", "resnet waits for slot 1 (input): 2.5 s in its last epoch"),
        (None, "collective", "resnet spends most of its time summing gradients: 2.5 s in its last epoch"),
    ],
)
def test_the_straggler_of_a_group_is_reported(slot, why, line):
    status = a_status()
    status["dnns"][0]["straggler"] = {"slot": slot, "why": why, "late_s": 2.5}
    assert line in render_status(status, now=NOW + 3).splitlines()


@pytest.mark.parametrize(
    ("left", "waited", "text"),
    [
        (None, None, ""),
        (0.034, 0.25, ", imbalance left 3 %, waited for each other 25 % of the time"),
    ],
)
def test_the_work_of_slots_is_shown_while_they_train(left, waited, text):
    status = a_status()
    status["dnns"][0]["work"] = {"relative": [1.25, 0.75], "imbalance_left": left, "waited": waited}
    line = f"resnet: work of a slot 0.75 to 1.25 times the mean{text} (last epoch)"
    assert line in render_status(status, now=NOW + 3).splitlines()
    status["dnns"][0]["slots"] = []
    assert line not in render_status(status, now=NOW + 3).splitlines()


def test_a_slot_that_a_group_leaves_out_is_shown_until_it_is_done():
    status = a_status()
    status["dnns"][0]["left_out"] = [2, 3]
    line = "resnet trains without slot 2 and slot 3, because it is faster that way"
    assert line in render_status(status, now=NOW + 3).splitlines()
    status["dnns"][0]["state"] = "done"
    assert line not in render_status(status, now=NOW + 3).splitlines()


def test_a_silent_run_is_reported():
    page = render_status(a_status(), now=NOW + 31)
    assert "has been silent for 31 s" in page
    assert "run the same command again to resume it" in page


def test_a_run_whose_process_is_gone_is_reported_at_once():
    status = a_status()
    status.update(host=os.uname().nodename, pid=2**22 + 1)
    assert f"process {2**22 + 1} on {os.uname().nodename} is gone" in render_status(status, now=NOW)


def test_a_run_in_a_container_that_shares_the_name_of_this_host_is_not_called_dead():
    status = a_status()
    status.update(host=os.uname().nodename, pid=2**22 + 1)
    status["process"]["pid_namespace"] = "pid:[1]"
    assert "WARNING" not in render_status(status, now=NOW + 20)
    assert "has been silent for 31 s" in render_status(status, now=NOW + 31)


def test_a_living_process_of_this_host_is_not_called_dead():
    status = a_status()
    status.update(host=os.uname().nodename, pid=os.getpid())
    assert "WARNING" not in render_status(status, now=NOW + 20)


def test_a_finished_run_is_never_called_dead():
    status = a_status(outcome="failed-dnns", exit_code=3)
    status["phase"] = "finished"
    page = render_status(status, now=NOW + 1e6)
    assert page.startswith("six: finished (failed-dnns, exit code 3), the last start took 0:00:00\n")
    assert "WARNING" not in page


@pytest.mark.parametrize(
    ("outcome", "exit_code", "headline", "how"),
    [
        (
            "suspended",
            75,
            "six: suspended (exit code 75), the last start took 0:00:00",
            "stopped before the end, all progress is saved: run the same command again to resume",
        ),
        (
            "suspended",
            2,
            "six: suspended (exit code 2), the last start took 0:00:00",
            "stopped by an error (see the logs): fix its cause and run the same command again",
        ),
        (
            "failed-dnns",
            3,
            "six: finished (failed-dnns, exit code 3), the last start took 0:00:00",
            "to give failed DNNs another try, run the same command with --retry-failed",
        ),
        (
            "profiled",
            0,
            "six: finished (profiled, exit code 0), the last start took 0:00:00",
            "rates are measured, nothing was trained: see 'hpcbal plan', or start 'hpcbal run'",
        ),
    ],
)
def test_an_end_that_is_not_final_shows_how_to_continue(outcome, exit_code, headline, how):
    status = a_status()
    end_status(status, outcome, exit_code)
    lines = render_status(status, now=NOW + 1e6).splitlines()
    assert lines[0] == headline
    assert lines[-1] == how


@pytest.mark.parametrize(
    ("outcome", "phase"),
    [
        ("suspended", "suspended"),
        ("done", "finished"),
        ("failed-dnns", "finished"),
        ("profiled", "finished"),
    ],
)
def test_a_start_that_stopped_before_the_end_is_not_called_finished(outcome, phase):
    status = a_status()
    assert not has_ended(status)
    end_status(status, outcome, 75)
    assert (status["phase"], status["outcome"], status["exit_code"]) == (phase, outcome, 75)
    assert phase in PHASES
    assert has_ended(status)
    assert death_note(status, now=NOW + 1e6) is None


def test_a_run_that_is_done_needs_nothing_more():
    status = a_status(outcome="done", exit_code=0)
    status["phase"] = "finished"
    lines = render_status(status, now=NOW).splitlines()
    assert lines[0].startswith("six: finished (done, exit code 0)")
    assert lines[-1].startswith("as of ")


def test_a_run_that_has_no_dnns_yet_can_be_shown():
    assert "no DNNs yet" in render_status(new_status("six", 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no status.json"),
        ("{", "not a status file of hpcbal"),
        ("[]", "not a status file of hpcbal"),
        ('{"schema": 1}', "another version"),
    ],
)
def test_what_is_not_a_status_is_reported(tmp_path, content, message):
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_status(tmp_path)


def test_another_schema_is_reported(tmp_path):
    status = a_status(schema=9)
    (tmp_path / "status.json").write_text(json.dumps(status))
    with pytest.raises(InputError, match="has schema 9, but this hpcbal reads schema 1"):
        read_status(tmp_path)


def test_a_status_of_a_kind_of_a_later_version_is_refused(tmp_path):
    write_status(tmp_path / "status.json", {**a_status(), "kind": "later"})
    with pytest.raises(InputError, match="kind 'later', but this hpcbal knows only ensemble"):
        read_status(tmp_path)


def test_a_status_without_what_its_kind_needs_is_refused(tmp_path):
    status = a_status()
    del status["preprocessing"]
    write_status(tmp_path / "status.json", status)
    with pytest.raises(InputError, match="preprocessing is missing"):
        read_status(tmp_path)


DAMAGES = {
    "text for a number": ((("dnns", 0, "epochs"), "3"), 'dnns.0.epochs is "3", allowed: a whole number'),
    "null for text": ((("host",), None), "host is null, allowed: text"),
    "true for a number": ((("elapsed_s",), True), "elapsed_s is true, allowed: a number"),
    "an infinite number": (
        (("dnns", 1, "wall_time_s"), float("inf")),
        "dnns.1.wall_time_s is Infinity, allowed: a",
    ),
    "more digits than a float holds": ((("num_slots",), 10**400), "num_slots is 1000"),
    "a list for an object": ((("dnns", 0, "metrics"), []), "dnns.0.metrics is [], allowed: an object"),
    "text in an object": (
        (("dnns", 0, "metrics"), {"loss": "x"}),
        'dnns.0.metrics.loss is "x", allowed: a number',
    ),
    "an object for a list": ((("dnns",), {}), "dnns is {}, allowed: a list"),
    "a number in a list": ((("dnns",), [7]), "dnns.0 is 7, allowed: an object"),
    "a straggler without a cause": (
        (("dnns", 0, "straggler"), {"slot": 1}),
        "dnns.0.straggler.why is missing",
    ),
    "no time": ((("updated_at",), "noon"), "updated_at is 'noon', allowed: a time like"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_status_is_refused_in_one_sentence(tmp_path, name):
    (path, value), message = DAMAGES[name]
    status = a_status()
    write_status(tmp_path / "status.json", status, now=NOW)
    *outer, last = path
    inside = status
    for key in outer:
        inside = inside[key]
    inside[last] = value
    (tmp_path / "status.json").write_text(json.dumps(status))
    with pytest.raises(InputError) as refused:
        read_status(tmp_path)
    assert f"status.json: damaged ({message}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_key_of_a_dnn_is_named(tmp_path):
    status = a_status()
    write_status(tmp_path / "status.json", status, now=NOW)
    text = (tmp_path / "status.json").read_text()
    (tmp_path / "status.json").write_text(text.replace('"wall_time_s"', '"wall_tile_s"'))
    with pytest.raises(InputError, match=r"dnns\.0\.wall_time_s is missing"):
        read_status(tmp_path)
    (tmp_path / "status.json").write_text("[" * 5000)
    with pytest.raises(InputError, match="not a status file of hpcbal"):
        read_status(tmp_path)


def test_any_flipped_bit_of_a_status_is_shown_or_refused(tmp_path):
    write_status(tmp_path / "status.json", a_status(), now=NOW)
    data = (tmp_path / "status.json").read_bytes()
    for place in range(0, 8 * len(data), 7):  # 7 and 8 have no common factor: every byte, every bit
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        (tmp_path / "status.json").write_bytes(damaged)
        with contextlib.suppress(InputError):
            assert render_status(read_status(tmp_path))
