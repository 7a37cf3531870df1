"""Learning curves that a simulation draws, because it trains nothing: they decide who is pruned."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY
from hpcbal.ensembling.evidence import encoded
from hpcbal.errors import InputError
from hpcbal.events.members import DnnSpec

Curves: TypeAlias = Callable[[str, int], float]
"""Takes the name of a DNN and an epoch (from 1), and returns its monitored metric."""

EvidenceOf: TypeAlias = Callable[[str, int], str]
"""Takes the same, and returns predictions for watched items, as `hpcbal.ensembling.encoded` writes them."""

NUM_ITEMS = 128
"""Items whose predictions are drawn."""

SPREAD, SHARED = 1.5, 0.5
"""Standard deviation of the logarithm of an item's loss, and the part of its variance that DNNs share."""

LAW_OF_EVIDENCE = (
    f"predictions for {NUM_ITEMS} items: lognormal losses around -log(score), spread {SPREAD:g}, "
    f"{SHARED:.0%} of their variance shared by all DNNs"
)
"""For people."""


@dataclass(frozen=True, slots=True)
class CurveLaw:
    """The distribution from which curves are drawn.

    The score of a DNN after epoch e is `limit * (1 - (1 + e)**-speed)`. Its limit is drawn evenly between two
    bounds, and so is the logarithm of its speed, independently: curves may cross. If less is better, the
    metric is 1 - score.

    Attributes:
        limits: bounds of what a DNN reaches in the end, between 0 and 1.
        speeds: bounds of the exponent, above 0.

    Raises:
        InputError: if bounds are out of range or in the wrong order.

    Source: a power law, one of the families that are often fitted to learning curves. Real curves are noisy.
    """

    limits: tuple[float, float] = (0.5, 1.0)
    speeds: tuple[float, float] = (0.3, 3.0)

    def __post_init__(self) -> None:
        if not 0.0 <= self.limits[0] <= self.limits[1] <= 1.0:
            raise InputError(f"curves.limits: got {self.limits}, allowed: 0 <= lower <= upper <= 1")
        if not 0.0 < self.speeds[0] <= self.speeds[1] < math.inf:
            raise InputError(f"curves.speeds: got {self.speeds}, allowed: 0 < lower <= upper")

    def draw(self, specs: Iterable[DnnSpec], seed: int) -> Curves:
        """The curves of these DNNs; a DNN has the same one in every ensemble and under every schedule."""
        drawn: dict[str, tuple[float, float]] = {}
        is_less_better = {spec.dnn_id: spec.stop.mode == "min" for spec in specs}
        for name in is_less_better:
            numbers = random.Random(f"{seed}/{name}")
            low, high = self.limits
            limit = low + (high - low) * numbers.random()
            low, high = map(math.log, self.speeds)
            drawn[name] = limit, math.exp(low + (high - low) * numbers.random())

        def metric(name: str, epoch: int) -> float:
            limit, speed = drawn[name]
            score = float(limit * (1.0 - (1.0 + epoch) ** -speed))
            return 1.0 - score if is_less_better[name] else score

        return metric

    def draw_evidence(self, specs: Iterable[DnnSpec], seed: int) -> EvidenceOf:
        """The predictions of these DNNs for `NUM_ITEMS` items, which fit their curves.

        The losses of a DNN's items are lognormal (`SPREAD`), their mean is minus the logarithm of its score,
        and half of what makes an item hard is shared by all DNNs (`SHARED`), in every epoch.
        """
        specs = list(specs)
        curves = self.draw(specs, seed)
        is_less_better = {spec.dnn_id: spec.stop.mode == "min" for spec in specs}
        shared = _normal(f"{seed}")

        def evidence(name: str, epoch: int) -> str:
            score = 1.0 - curves(name, epoch) if is_less_better[name] else curves(name, epoch)
            mean_loss = -math.log(max(score, TINY))
            own = math.sqrt(SHARED) * shared + math.sqrt(1.0 - SHARED) * _normal(f"{seed}/{name}")
            hardness = np.exp(SPREAD * own)
            return encoded(np.exp(-mean_loss * hardness / hardness.mean()), "classes")

        return evidence

    def __str__(self) -> str:
        (low, high), (slow, fast) = self.limits, self.speeds
        return (
            f"score = limit * (1 - (1 + epoch)^-speed), limit {low:g} to {high:g}, speed {slow:g} to {fast:g}"
        )


def _normal(text: str) -> NDArray[np.float64]:
    """Normal random numbers of a text, one for each item."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(list(text.encode()))))
    return generator.standard_normal(NUM_ITEMS)
