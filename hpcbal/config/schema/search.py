"""The section `search` of a sweep: DNNs whose keys are drawn at random."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, Strict, model_validator

from hpcbal.config.schema.section import COUNT_ALLOWED, MOST, Section, key, wrong

_DIGITS = 4
_ALL_DIGITS = 17  # of a float
_NUM_APART = 1000
_BOUNDS = "[lower, upper] with lower < upper"
_Number = Annotated[float, Field(ge=-MOST, le=MOST)]
_Whole = Annotated[int, Field(ge=-MOST, le=MOST)]
_KINDS = ("uniform", "log_uniform", "integers", "choice")


class Distribution(Section):
    """From what the values of one key are drawn; exactly one of these.

    A drawn number that is not whole is rounded to four significant digits, so that it can be in a name, or to
    as many as it takes to tell a thousand numbers between its bounds apart.
    """

    uniform: Annotated[tuple[_Number, _Number], Strict(False)] | None = key(
        None, "All numbers between two bounds, equally likely.", _BOUNDS
    )
    log_uniform: Annotated[tuple[_Number, _Number], Strict(False)] | None = key(
        None, "Numbers between two bounds, by their logarithm.", f"{_BOUNDS}, above 0"
    )
    integers: Annotated[tuple[_Whole, _Whole], Strict(False)] | None = key(
        None, "Whole numbers between two bounds, both included, equally likely.", f"{_BOUNDS}, whole numbers"
    )
    choice: Annotated[tuple[Any, ...], Strict(False)] | None = key(
        None, "These values, equally likely.", "a list of at least one value", min_length=1
    )

    @property
    def kind(self) -> str:
        """Which of the keys is given."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _check(self) -> Distribution:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise wrong("", f"got {', '.join(given) or 'nothing'}, allowed: one of {', '.join(_KINDS)}")
        bounds = self.uniform or self.log_uniform or self.integers
        if bounds is not None and bounds[0] >= bounds[1]:
            raise wrong(given[0], f"got {list(bounds)}, allowed: {_BOUNDS}")
        if self.log_uniform is not None and self.log_uniform[0] <= 0.0:
            raise wrong(given[0], f"got {list(self.log_uniform)}, allowed: {_BOUNDS}, above 0")
        return self

    def draw(self, u: float) -> float | int:
        """The value at the share `u`, 0 <= u < 1, of the distribution; for `choice` its index."""
        if self.choice is not None:
            return int(u * len(self.choice))
        if self.integers is not None:
            low, high = self.integers
            return low + int(u * (high - low + 1))
        if self.log_uniform is not None:
            low_log, high_log = map(math.log, self.log_uniform)
            return _rounded(math.exp(low_log + u * (high_log - low_log)), self.log_uniform)
        assert self.uniform is not None
        least, most = self.uniform
        return _rounded(least + u * (most - least), self.uniform)


class SearchConfig(Section):
    """DNNs that differ in keys whose values are drawn at random, independently of each other."""

    samples: int = key(..., "Number of draws; each makes one DNN.", COUNT_ALLOWED, ge=1)
    seed: int | None = key(
        None, "Seed of the draws; null: the run's seed.", "null or a whole number, 0 or more", ge=0, lt=2**63
    )
    space: Mapping[str, Distribution] = key(
        ...,
        "The distribution of each key that varies.",
        "{key of a DNN: distribution}, e.g. '{optimizer.learning_rate: {log_uniform: [1e-4, 1]}}'",
        min_length=1,
    )

    def draws(self, seed: int, name: str) -> list[dict[str, float | int]]:
        """What is drawn for each sample, by key; for a `choice` the index of the value.

        A key has its own random numbers, and sample i is the i-th of them. So more samples, or more keys, do
        not change those there are.

        Args:
            seed: the run's seed.
            name: what tells sweeps with the same keys apart: the template of their names.
        """
        own = seed if self.seed is None else self.seed
        result: list[dict[str, float | int]] = [{} for _ in range(self.samples)]
        for dotted, distribution in self.space.items():
            # Seeded by text, and `random` alone: both are the same in all versions of Python 3.
            numbers = random.Random(f"{own}/{name}/{dotted}")
            for sample in result:
                sample[dotted] = distribution.draw(numbers.random())
        return result


def _rounded(value: float, bounds: tuple[float, float]) -> float:
    """Rounded to significant digits, but not beyond the bounds."""
    low, high = bounds
    finest = (high - low) / _NUM_APART
    tried = (float(f"{value:.{digits}g}") for digits in range(_DIGITS, _ALL_DIGITS))
    near = next((rounded for rounded in tried if abs(rounded - value) <= finest), value)
    return min(max(near, low), high)
