"""Decide how many samples of a step each trainer of a group takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpcbal.policies.batching.even import split_evenly

BATCHING: Mapping[str, Callable[[int, int], tuple[int, ...]]] = MappingProxyType({"even": split_evenly})

__all__ = ["BATCHING", "split_evenly"]
