"""Failures keep their cause and their message on the way to other ranks."""

from __future__ import annotations

import pickle

from hpcbal.errors import InputError
from hpcbal.training.groups import DETAIL_BYTES, GroupFailed, NonFiniteError, cause_of, detail_of, shortened


def test_group_failed_survives_pickling() -> None:
    failed = GroupFailed("oom", "device full", local=True, rank=3)
    copy = pickle.loads(pickle.dumps(failed))
    assert (copy.cause, copy.detail, copy.local, copy.rank) == ("oom", "device full", True, 3)
    assert str(copy) == str(failed) == "oom on this rank: device full"


def test_causes() -> None:
    assert cause_of(MemoryError()) == "oom"
    assert cause_of(NonFiniteError("loss")) == "nan"
    assert cause_of(ZeroDivisionError()) == "error"
    assert cause_of(GroupFailed("nan", "", local=False)) == "nan"


def test_other_exceptions_show_one_line_and_their_traceback_and_ours_their_message() -> None:
    assert detail_of(InputError("no such optimizer")) == "no such optimizer"
    try:
        _ = 1 // 0
    except ZeroDivisionError as error:
        detail = detail_of(error)
    first, _, rest = detail.partition("\n")
    assert first.endswith(": ZeroDivisionError: integer division or modulo by zero")
    assert "_ = 1 // 0" in rest


def test_of_a_long_detail_the_first_line_and_the_end_are_sent() -> None:
    detail = "m.py:3: ValueError: no\n" + "x\n" * DETAIL_BYTES + "the end"
    sent = shortened(detail).decode()
    assert len(sent) == DETAIL_BYTES
    assert sent.startswith("m.py:3: ValueError: no\n[...]\n")
    assert sent.endswith("x\nthe end")
    assert shortened("short") == b"short"
    one_line = shortened("begin" + "y" * 3 * DETAIL_BYTES + "end").decode()
    assert len(one_line) == DETAIL_BYTES
    assert (one_line[:5], one_line[-3:]) == ("begin", "end")
