"""Logs: all in the rank's file, decisions and the first traceback on the console."""

import io
import logging
from types import SimpleNamespace

import pytest

from hpcbal import processes
from hpcbal.errors import OutputError
from hpcbal.telemetry.streams.rank_log import configure_rank_logging

log = logging.getLogger("hpcbal.some.room")


def fail_with(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("step failed")


def test_rank_zero_shows_decisions_and_keeps_all(tmp_path):
    console = io.StringIO()
    with configure_rank_logging(tmp_path, 0, "node%1", logging.DEBUG, console):
        log.debug("a detail")
        log.info("round %d starts", 3)
        log.warning("a file is damaged")
        logging.getLogger("horovod").warning("not ours")
    assert console.getvalue() == "hpcbal: round 3 starts\nhpcbal: warning: a file is damaged\n"
    text = (tmp_path / "logs/rank-000.log").read_text()
    assert "node%1:0 DEBUG hpcbal.some.room: a detail" in text
    assert "not ours" in text


def test_other_ranks_are_quiet_but_for_their_file(tmp_path):
    console = io.StringIO()
    with configure_rank_logging(tmp_path, 12, "node1", stream=console):
        log.warning("a file is damaged")
        log.error("no traceback here")
    assert console.getvalue() == ""
    assert "no traceback here" in (tmp_path / "logs/rank-012.log").read_text()


def test_only_the_first_traceback_of_any_rank_is_shown(tmp_path):
    consoles = [io.StringIO() for _ in range(3)]
    for rank in (1, 2):  # one after the other: they share this process's root logger
        with configure_rank_logging(tmp_path, rank, "node1", stream=consoles[rank]):
            fail_with(f"on rank {rank}")
            fail_with("again")
    shown = consoles[1].getvalue()
    assert shown.startswith("first error of the run: rank 1 on node1: step failed\nTraceback")
    assert shown.count("Traceback") == 1
    assert shown.rstrip().endswith("ValueError: on rank 1")
    assert consoles[2].getvalue() == ""
    assert (tmp_path / "logs/first-error.txt").read_text() == shown
    assert "ValueError: on rank 2" in (tmp_path / "logs/rank-002.log").read_text()


def test_rank_zero_shows_its_error_in_one_line_and_the_traceback_once(tmp_path):
    console = io.StringIO()
    with configure_rank_logging(tmp_path, 0, "node1", stream=console):
        fail_with("here")
        fail_with("there")
    assert console.getvalue().count("Traceback") == 1
    assert console.getvalue().count("hpcbal: error: step failed\n") == 2


def test_a_new_start_appends_and_forgets_the_first_error(tmp_path):
    for attempt in ("one", "two"):
        console = io.StringIO()
        with configure_rank_logging(tmp_path, 0, "node1", stream=console):
            fail_with(attempt)
        assert f"ValueError: {attempt}" in console.getvalue()
    assert (tmp_path / "logs/rank-000.log").read_text().count("Traceback") == 2


def test_close_takes_everything_back(tmp_path):
    before = (list(logging.getLogger().handlers), logging.getLogger("hpcbal").level)
    logs = configure_rank_logging(tmp_path, 0, "node1", stream=io.StringIO())
    logs.close()
    logs.close()
    assert (list(logging.getLogger().handlers), logging.getLogger("hpcbal").level) == before


def test_a_log_that_cannot_be_opened_is_reported(tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(OutputError, match=r"rank-003\.log: cannot open the log"):
        configure_rank_logging(tmp_path, 3, "node1")


def test_errors_of_other_libraries_are_among_what_users_print(tmp_path, monkeypatch):
    """Not among what hpcbal prints, all of which is forwarded."""
    own, shared = io.StringIO(), io.StringIO()
    monkeypatch.setitem(processes._own_streams, "stderr", own)
    monkeypatch.setattr("sys.stderr", shared)
    with configure_rank_logging(tmp_path, 0, "n"):
        log.error("ours")
        logging.getLogger("mydataset").error("theirs")
        logging.getLogger("mydataset").warning("kept in the file")
    assert own.getvalue() == "hpcbal: error: ours\n"
    assert shared.getvalue() == "hpcbal: error: theirs\n"


def test_an_error_of_another_library_ends_nothing_whatever_stderr_is(tmp_path, monkeypatch):
    theirs = logging.getLogger("mydataset")
    lines_to_log = SimpleNamespace(write=lambda text: theirs.error("printed: %s", text))
    for stream in (None, object(), lines_to_log):
        monkeypatch.setattr("sys.stderr", stream)
        with configure_rank_logging(tmp_path, 0, "n"):
            theirs.error("here")
    kept = (tmp_path / "logs/rank-000.log").read_text()
    assert kept.count("here") == 4, "the last stream logs what is printed, once"


def test_a_wrong_call_of_a_library_ends_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest fail
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with configure_rank_logging(tmp_path, 0, "n"):
        logging.getLogger("mydataset").error("%d items", "no number")
        logging.getLogger("mydataset").error("the next")
    assert "the next" in (tmp_path / "logs/rank-000.log").read_text()
