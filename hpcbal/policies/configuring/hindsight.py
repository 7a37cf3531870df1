"""How long epochs take in the present configuration of a job, as measured.

The cost model leaves out what it cannot know: in `async`, workers that come to meet at the same server again
and again; machines that others use too. So a change that was predicted to pay may not.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_TURNS = 4
"""Turns of each worker after its first one, before its rate counts."""

LEAST_EPOCHS = 2
"""Whole epochs since a change, before their time counts."""


@dataclass(slots=True)
class _Pace:
    """Turns of one worker since its first one.

    Attributes:
        first_s, last_s: ends of the first and of the last turn.
        samples, turns: after the first one.
    """

    first_s: float
    last_s: float
    samples: int = 0
    turns: int = 0


class Hindsight:
    """Measures the epochs of the present configuration.

    Args:
        num_samples: of an epoch.
    """

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._ends_s: list[float] = []
        self._paces: dict[int, _Pace] = {}

    def note_turn(self, worker: int, samples: int, now_s: float) -> None:
        """A worker has ended a turn at a time of any clock, in seconds."""
        pace = self._paces.get(worker)
        if pace is None:
            self._paces[worker] = _Pace(now_s, now_s)
            return
        pace.last_s = now_s
        pace.samples += samples
        pace.turns += 1

    def note_epoch(self, now_s: float) -> None:
        """An epoch has ended."""
        self._ends_s.append(now_s)

    def restart(self) -> None:
        """The configuration has changed."""
        self._ends_s, self._paces = [], {}

    @property
    def epoch_s(self) -> float | None:
        """Mean of the whole epochs since the last change; None: there are too few."""
        whole = len(self._ends_s) - 1
        return None if whole < LEAST_EPOCHS else (self._ends_s[-1] - self._ends_s[0]) / whole

    @property
    def roughly_s(self) -> float | None:
        """The same, or, while there are too few epochs, what one takes at the rates of all workers.

        None: too few turns are known. Objectives and checkpoints do not count then.
        """
        if self.epoch_s is not None:
            return self.epoch_s
        paces = self._paces.values()
        if not paces or any(pace.turns < LEAST_TURNS or pace.last_s <= pace.first_s for pace in paces):
            return None
        rate = sum(pace.samples / (pace.last_s - pace.first_s) for pace in paces)
        return self._num_samples / rate if rate else None
