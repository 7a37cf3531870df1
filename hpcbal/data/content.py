"""Digests of what files hold: a few numbers that show which samples may have changed.

Each number covers the samples whose ids have the same remainder, so that a sample that was broken and has
been repaired changes the number of its own group only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

NUM_GROUPS = 128
"""Groups of samples; a damaged file of 64 looked at leaves 127 of them as they were."""
LEAST_GROUPS = 32
"""Groups that must be as they were, 16 bits each, for data to be the same."""
MOST_REPAIRED = 8
"""Groups that may have changed where nobody knows which samples were broken."""
_DIGITS = 4
_OLDER = (0, 32)
"""Digits of digests from before there were groups."""
CONTENT = "."
"""Begins the part of a fingerprint that says what files hold."""
BETWEEN_PARTS = "+"
"""Between the digests of training and validation samples of their own."""


def content_digest(
    content: Mapping[int, bytes], lengths: NDArray[np.integer] | None = None, of_all: bytes = b""
) -> str:
    """Return a digest of what samples hold: `NUM_GROUPS` numbers, in hexadecimal digits.

    Args:
        content: what was looked at of some samples, by id.
        lengths: of all samples, shape (num_samples,).
        of_all: what belongs to no sample; it changes all groups.
    """
    sums = np.full(NUM_GROUPS, _number(b"all " + of_all), np.uint64)
    with np.errstate(over="ignore"):
        if lengths is not None:
            padded = np.zeros(-(-len(lengths) // NUM_GROUPS) * NUM_GROUPS, np.uint64)
            padded[: len(lengths)] = _mixed(np.arange(len(lengths), dtype=np.uint64), lengths)
            sums += padded.reshape(-1, NUM_GROUPS).sum(axis=0, dtype=np.uint64)
        for sample_id, looked_at in content.items():
            sums[sample_id % NUM_GROUPS] += np.uint64(_number(b"%d " % sample_id + looked_at))
    return "".join(f"{number >> 48:0{_DIGITS}x}" for number in sums.tolist())


def known_as(fingerprint: str, trained_on: Iterable[str], broken: Sequence[Collection[int]]) -> str:
    """Return the fingerprint under which a run knows its data.

    Args:
        fingerprint: of the data that there are.
        trained_on: fingerprints of the run's checkpoints.
        broken: ids of samples that the run could not use, for each part: these may have been repaired.

    Returns: one of `trained_on` if the data differ from it by such samples only; else `fingerprint`.
    """
    own_identity, _, own_content = fingerprint.partition(CONTENT)
    for each in trained_on:
        identity, _, content = each.partition(CONTENT)
        if identity == own_identity and is_repaired(content, own_content, broken):
            return each
    return fingerprint


def is_repaired(trained_on: str, now: str, broken: Sequence[Collection[int]]) -> bool:
    """Whether two digests differ only where samples were broken.

    Args:
        trained_on, now: what `content_digest` returned; of several parts, joined by `BETWEEN_PARTS`.
        broken: ids of samples that were broken, for each part.

    Returns: False if too few groups had no broken sample to decide by. True if `trained_on` is of
        a checkpoint from before there were groups, which says nothing.
    """
    before, after = (digest.split(BETWEEN_PARTS) for digest in (trained_on, now))
    if not len(before) == len(after) == len(broken):
        return False
    for old, new, ids in zip(before, after, broken, strict=True):
        if old == new or (len(old) in _OLDER and len(new) == NUM_GROUPS * _DIGITS):
            continue
        if not len(old) == len(new) == NUM_GROUPS * _DIGITS:
            return False
        exempt = {sample_id % NUM_GROUPS for sample_id in ids}
        rest = [group for group in range(NUM_GROUPS) if group not in exempt]
        if len(rest) < LEAST_GROUPS or any(_of(old, group) != _of(new, group) for group in rest):
            return False
    return True


def are_alike(trained_on: str, now: str) -> bool:
    """Whether two fingerprints are of the same samples, except for a few that may have been repaired."""
    (identity, _, before), (own_identity, _, after) = (each.partition(CONTENT) for each in (trained_on, now))
    old, new = before.split(BETWEEN_PARTS), after.split(BETWEEN_PARTS)
    return identity == own_identity and len(old) == len(new) and all(map(_differ_little, old, new))


def _differ_little(old: str, new: str) -> bool:
    if not len(old) == len(new) == NUM_GROUPS * _DIGITS:
        return old == new or len(old) in _OLDER
    return sum(_of(old, group) != _of(new, group) for group in range(NUM_GROUPS)) <= MOST_REPAIRED


def shortened(fingerprints: Iterable[str]) -> list[str]:
    """Return fingerprints in a form for people: what is long is replaced by its digest."""
    return [
        each if len(each) <= 97 else f"{each[:64]}.{hashlib.sha256(each[64:].encode()).hexdigest()[:32]}"
        for each in fingerprints
    ]


def _of(digest: str, group: int) -> str:
    return digest[group * _DIGITS : (group + 1) * _DIGITS]


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8])


def _mixed(ids: NDArray[np.uint64], lengths: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A number for each pair of id and length that looks random: the last step of splitmix64, twice."""
    mixed = ids
    for added in (np.uint64(0x9E3779B97F4A7C15), lengths.astype(np.uint64)):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + added
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed
