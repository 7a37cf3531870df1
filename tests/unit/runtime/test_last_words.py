"""A rank whose stderr is closed, because mpirun was killed, ends its job like any other rank."""

from __future__ import annotations

import errno
import os

import pytest

from hpcbal.runtime.health.ending import write_last_words


def test_last_words_that_nobody_hears_do_not_keep_a_rank_from_ending_the_job(monkeypatch: pytest.MonkeyPatch):
    heard: list[int] = []

    def deaf(descriptor: int, text: bytes) -> int:
        heard.append(descriptor)
        raise OSError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(os, "write", deaf)
    write_last_words("rank 3 died")
    assert heard == [2]
