"""Epochs of the present configuration, by whole epochs and by turns."""

from __future__ import annotations

import pytest

from hpcbal.policies.configuring.metrics import Hindsight


def test_whole_epochs_count_once_there_are_two() -> None:
    seen = Hindsight(100)
    for end_s in (5.0, 9.0):
        seen.note_epoch(end_s)
        assert seen.epoch_s is None
    seen.note_epoch(15.0)
    assert seen.epoch_s == seen.roughly_s == 5.0
    seen.restart()
    assert seen.epoch_s is seen.roughly_s is None


@pytest.mark.parametrize("offset_s", [0.0, 0.5])
def test_turns_of_unlike_workers_add_up_whether_they_end_together_or_not(offset_s: float) -> None:
    """One worker takes 10 samples a second, the other 5: an epoch of 300 takes 20 s."""
    seen = Hindsight(300)
    for number in range(5):
        assert seen.roughly_s is None
        seen.note_turn(1, 10, float(number))
        seen.note_turn(2, 10, offset_s + 2.0 * number)
    assert seen.roughly_s == pytest.approx(20.0)
    seen.note_turn(3, 10, 9.0)
    assert seen.roughly_s is None, "little is known of a worker that has come"
