"""A read that blocks is reported once, with the name of its sample, by a thread that does not read."""

from __future__ import annotations

import threading
import time

import pytest

from hpcbal.runtime.health.silence import ReadWatch, watched

LIMIT_S = 0.05


class Files:
    """A source that reads what the test says, for as long as it says."""

    reading: tuple[int, float] | None = None

    def where(self, sample_id: int) -> str:
        return f"cat-{sample_id}.jpg"

    def begin(self, sample_id: int, lasted_s: float = 0.0) -> None:
        self.reading = (sample_id, time.monotonic() - lasted_s)


@pytest.fixture
def files() -> Files:
    return Files()


def test_each_read_that_lasts_too_long_is_news_once(files: Files) -> None:
    watch = ReadWatch(files, LIMIT_S)
    assert (watch.is_blocked(), watch.news()) == (False, None)
    files.begin(7)
    watch_long = ReadWatch(files, 60.0)
    assert (watch_long.is_blocked(), watch_long.news()) == (False, None)
    for _ in range(2):  # the same sample again, in the next pass
        files.begin(7, lasted_s=1.0)
        assert watch.is_blocked()
        assert [watch.news(), watch.news()] == ["blocked in reading sample 7 (cat-7.jpg)", None]


def test_the_reading_thread_need_not_ask(files: Files) -> None:
    heard = threading.Event()
    texts: list[str] = []

    def report(text: str) -> None:
        texts.append(text)
        heard.set()

    with watched(ReadWatch(files, LIMIT_S), report):
        files.begin(3)
        assert heard.wait(30.0)
    assert texts == ["blocked in reading sample 3 (cat-3.jpg)"]
