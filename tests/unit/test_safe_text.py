"""Text from elsewhere cannot act on a terminal."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path

import pytest

from hpcbal.errors import ConfigError
from hpcbal.events.ensemble import DnnFailed, LeaveRound
from hpcbal.processes import say
from hpcbal.safe_text import one_line, printable, shortened
from hpcbal.telemetry.streams.rank_log import configure_rank_logging
from hpcbal.telemetry.views.progress import Progress

HOSTILE = "a\x1b[2Jb\rc\x00d\u202ee\x9bf\u2028g\ud800h\x07i"
SAFE = "a\\x1b[2Jb\\rc\\x00d\\u202ee\\x9bf\\u2028g\\ud800h\\x07i"


def test_what_a_terminal_could_obey_becomes_an_escape() -> None:
    assert printable(HOSTILE) == SAFE
    assert printable("é, 漢字, a\tb\nc") == "é, 漢字, a\tb\nc"
    assert printable(os.fsdecode(b"b\xe4")) == "b\\xe4", "a byte that is no UTF-8 is shown as it is"
    assert one_line("a\tb\nc") == "a\\tb\\nc"


def test_long_text_keeps_its_ends() -> None:
    assert shortened("x" * 160) == "x" * 160
    assert shortened("a" + "x" * 1000 + "b", 20) == "a" + "x" * 11 + "..." + "x" * 4 + "b"


def test_messages_on_stderr_are_printable(capfd: pytest.CaptureFixture[str]) -> None:
    say(f"hpcbal: {HOSTILE}")
    assert capfd.readouterr().err == f"hpcbal: {SAFE}\n"


def test_a_problem_of_a_configuration_is_one_printable_line() -> None:
    assert ConfigError([f"a\n{HOSTILE}"]).problems == (f"a\\n{SAFE}",)


@pytest.mark.parametrize("color", [False, True])
def test_lines_of_progress_hold_no_controls_but_their_own_colours(color: bool) -> None:
    stream = io.StringIO()
    progress = Progress(stream, 1, color=color, clock=lambda: 0.0)
    progress.note(f"note {HOSTILE}")
    progress.warn(f"broken sample skipped: {HOSTILE}\nmore")
    progress.handle(DnnFailed("a", "error", f"ValueError: {HOSTILE}"))
    progress.handle(LeaveRound("a", "converged", HOSTILE))
    text = stream.getvalue()
    for own in ("\x1b[31m", "\x1b[32m", "\x1b[0m"):
        assert (own in text) == color
        text = text.replace(own, "")
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count("\n") == 5
    assert text.count("\\u202e") == 3, "of a failure, only the line up to the carriage return is shown"


def test_logs_are_safe_to_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest-xdist cannot send a lone surrogate
    stream = io.StringIO()
    log = logging.getLogger("hpcbal.test_printable")
    with configure_rank_logging(tmp_path, 0, "host", stream=stream):
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.exception("of a user's model: %s", HOSTILE)
    logs = [path.read_text(encoding="utf-8") for path in (tmp_path / "logs").iterdir()]
    assert len(logs) == 2
    for text in (*logs, stream.getvalue()):
        assert SAFE in text
        assert all(line.isprintable() for line in text.split("\n"))
