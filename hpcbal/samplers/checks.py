"""Check the numbers with which a sampler is made."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from hpcbal import env
from hpcbal.errors import SamplerError


def whole(name: str, number: Any, least: int) -> int:
    """Return a whole number as int.

    Raises: SamplerError: it is no whole number, or below `least`.
    """
    try:
        checked = operator.index(number)
    except TypeError:
        checked = least - 1
    if isinstance(number, bool) or checked < least:
        raise SamplerError(f"{name}: got {number!r}, allowed: a whole number, {least} or more")
    return checked


def flag(name: str, value: Any) -> bool:
    """Return a truth value as bool; 0 and 1 are some.

    Raises: SamplerError: it is none: most texts would count as true.
    """
    if isinstance(value, int | np.bool_) and value in (0, 1):
        return bool(value)
    raise SamplerError(f"{name}: got {value!r}, allowed: True or False")


def number(value: Any) -> float:
    """Return a number as float, NaN for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def place(num_replicas: int | None, rank: int | None, group: Any) -> tuple[int, int]:
    """Return the number of ranks and this one's: those given, or those of torch.distributed.

    Raises: SamplerError: only one is given, they do not fit, or torchrun has started several processes that
        are not connected yet.
    """
    if num_replicas is None and rank is None:
        return _connected(group)
    if num_replicas is None or rank is None:
        raise SamplerError("num_replicas, rank: got one of them, allowed: both, or neither")
    num_replicas, rank = whole("num_replicas", num_replicas, 1), whole("rank", rank, 0)
    if rank >= num_replicas:
        raise SamplerError(f"rank: got {rank}, allowed: 0 to {num_replicas - 1}")
    return num_replicas, rank


def _connected(group: Any) -> tuple[int, int]:
    from hpcbal.samplers.torch_side import replicas

    found = replicas(group)
    started = env.read("WORLD_SIZE") or "1"
    if found is None and started != "1":
        raise SamplerError(
            f"num_replicas: torch.distributed is not initialised, but WORLD_SIZE says {started} processes; "
            "call init_process_group before you make the sampler, or give num_replicas and rank"
        )
    return found or (1, 0)


def check_batches(
    num_samples: int, batch_size: int, num_replicas: int, max_per_rank: int | None, drop_last: bool
) -> None:
    """Raises: SamplerError: a step has no sample for some rank, or too many for all, or there is no step."""
    if batch_size < num_replicas:
        raise SamplerError(
            f"batch_size: got {batch_size}, allowed: at least {num_replicas}, one sample for each rank; it "
            "counts the samples of all ranks together"
        )
    if max_per_rank is not None and max_per_rank * num_replicas < batch_size:
        raise SamplerError(
            f"max_per_rank: got {max_per_rank}, allowed: at least {-(-batch_size // num_replicas)}, so that "
            f"{num_replicas} ranks take a batch of {batch_size}"
        )
    if drop_last and num_samples < batch_size:
        raise SamplerError(
            f"batch_size: got {batch_size} for {num_samples} samples with drop_last, so an epoch has no "
            "step; use a smaller batch_size"
        )
    rest = num_samples % batch_size
    if not drop_last and 0 < rest < num_replicas:
        raise SamplerError(
            f"batch_size: the last step of an epoch has {rest} of {num_samples} samples, fewer than the "
            f"{num_replicas} ranks; use drop_last=True, or another batch_size"
        )
