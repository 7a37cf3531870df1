"""Split a step's samples over a trainer group as evenly as whole samples allow."""

from __future__ import annotations

from hpcbal.errors import PolicyError


def split_evenly(num_samples: int, num_workers: int) -> tuple[int, ...]:
    """Samples of each worker; the first `num_samples % num_workers` workers take one more.

    Args:
        num_samples: of the global batch, >= 0; may be fewer than workers (then some get none).
        num_workers: trainers of the group, >= 1.

    Returns: num_workers counts that differ by at most 1, largest first, with sum `num_samples`.
    Raises: PolicyError: an argument is out of range.
    """
    if num_samples < 0 or num_workers < 1:
        raise PolicyError(
            f"cannot split {num_samples} samples over {num_workers} workers; "
            "allowed: 0 or more samples, 1 or more workers"
        )
    share, num_larger = divmod(num_samples, num_workers)
    return (share + 1,) * num_larger + (share,) * (num_workers - num_larger)
