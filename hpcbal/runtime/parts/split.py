"""Let migrations of partitioned data ride along with how a group splits its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcbal.runtime.balance.balancer import Balancer
from hpcbal.runtime.balance.step_report import only_compute
from hpcbal.runtime.parts.part import Parts
from hpcbal.training.arrays import Array


class PartsSplit:
    """Splits as `balancer` does; one more number travels with what it reports.

    Args:
        parts: of this rank; told of every training step.
    """

    def __init__(self, balancer: Balancer, parts: Parts) -> None:
        self._balancer = balancer
        self._parts = parts
        self.is_fresh = balancer.is_fresh

    @property
    def remove(self) -> int | None:
        """As `Balancer.remove`: those who stay are dealt parts anew."""
        return self._balancer.remove

    def start(self) -> None:
        """As `Balancer.start`."""
        self._balancer.start()

    def split(self, num_samples: int) -> tuple[int, ...]:
        """As `Balancer.split`."""
        return self._balancer.split(num_samples)

    def report(
        self, num_samples: int, began_s: float, to_worked_s: Callable[[float], float] = only_compute
    ) -> Callable[..., Array]:
        """As `Balancer.report`; the last number is that of the migration."""
        inner = self._balancer.report(num_samples, began_s, to_worked_s)

        def arrived(*waited_s: float) -> Array:
            told = inner(*waited_s) if inner is not None else np.zeros(0)
            return np.append(told, self._parts.report())

        return arrived

    def take(self, summed: Array, shares: Sequence[int]) -> None:
        """As `Balancer.take`."""
        self._parts.take(float(summed[-1]))
        self._balancer.take(summed[:-1], shares)

    def take_facts(self) -> dict[str, Any]:
        """As `Balancer.take_facts`, and where the samples are."""
        return {**self._balancer.take_facts(), "partition": self._parts.facts()}

    def close(self) -> None:
        """As `Balancer.close`."""
        self._balancer.close()
