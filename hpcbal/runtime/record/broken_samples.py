"""Report broken samples by what is wrong with them: each fault a few times, and how many samples have it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

MAX_LIKE = 5
"""Samples with the same fault that the console names."""

MAX_NAMED = 25
"""Broken samples that the console names, whatever their faults."""

_MAX_FAULTS = 3
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def fault_of(where: str, reason: str) -> str:
    """The reason without the sample's name and without numbers: equal for samples with the same fault."""
    return _NUMBER.sub("#", reason.replace(where, "") if where else reason)


class BrokenSampleLines:
    """Makes lines for the console, and stops when further ones would say the same."""

    def __init__(self) -> None:
        self._num_by_fault: Counter[str] = Counter()
        self._num_named = 0
        self._is_full = False

    def add(self, where: str, reason: str) -> str | None:
        """The line about one more broken sample; None if there is nothing new to say."""
        if self._is_full:
            return None
        fault = fault_of(where, reason)
        self._num_by_fault[fault] += 1
        num_like = self._num_by_fault[fault]
        if num_like > MAX_LIKE + 1:
            return None
        if num_like == MAX_LIKE + 1:
            return f"more samples are broken like {where}: {reason}; ledger.jsonl names them all"
        self._is_full = self._num_named == MAX_NAMED
        if self._is_full:
            return "more samples are broken; ledger.jsonl names them all"
        self._num_named += 1
        return f"broken sample skipped: {where}: {reason}"


def summary_of_broken(samples: Iterable[tuple[str, str]]) -> str:
    """The most frequent faults, each with one sample that has it: `7 like cat/3.png: truncated`.

    Args:
        samples: name and reason of each broken sample, at least one.
    """
    first: dict[str, str] = {}
    num_by_fault: Counter[str] = Counter()
    for where, reason in samples:
        fault = fault_of(where, reason)
        first.setdefault(fault, f"{where}: {reason}")
        num_by_fault[fault] += 1
    shown = num_by_fault.most_common(_MAX_FAULTS)
    texts = [first[fault] if num == 1 else f"{num} like {first[fault]}" for fault, num in shown]
    num_others = num_by_fault.total() - sum(num for _, num in shown)
    return "; ".join([*texts, f"{num_others} others"] if num_others else texts)
