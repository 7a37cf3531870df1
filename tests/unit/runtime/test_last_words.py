"""A run whose stdout and stderr nobody reads any more, since mpirun was killed, ends as any other."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys

import pytest

from hpcbal.errors import InputError
from hpcbal.runtime.ending import write_last_words
from hpcbal.runtime.scheduler import print_end


class Deaf(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_results_that_cannot_be_printed_are_told_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sys, "stdout", Deaf())
    with caplog.at_level(logging.WARNING):
        print_end("the table", None)
    assert "the results could not be printed: [Errno 5]" in caplog.text


def test_results_are_printed_and_what_ended_the_run_too(capsys: pytest.CaptureFixture[str]):
    print_end("the table", InputError("too many broken samples"))
    assert capsys.readouterr() == ("\nthe table\n", "hpcbal: too many broken samples\n")


def test_last_words_that_nobody_hears_do_not_keep_a_rank_from_ending_the_job(monkeypatch: pytest.MonkeyPatch):
    heard: list[int] = []

    def deaf(descriptor: int, text: bytes) -> int:
        heard.append(descriptor)
        raise OSError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(os, "write", deaf)
    write_last_words("rank 3 died")
    assert heard == [2]
