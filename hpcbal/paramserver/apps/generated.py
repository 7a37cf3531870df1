"""Generated data of any size, with the sparsity of data sets that papers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcbal.errors import InputError
from hpcbal.paramserver.api.columns import Array, IntArray
from hpcbal.paramserver.apps.sources import GeneratedSource, check_counts

_SHARED = 1
"""Second number in the seed of what all samples share."""


class _Ratings(GeneratedSource):
    ragged = ("items", "ratings")
    spread = 1.247
    """Spread of the logarithm of the number of ratings: the mean of Netflix's users is 209, the median 96."""

    exponent = 0.8
    """Popularity of an item is its rank to the power of minus this."""

    mean = 3.6

    def __init__(self, num_users: int, num_items: int, mean_ratings: float, rank: int, seed: int) -> None:
        super().__init__(num_users, seed, num_items=num_items)
        self._mean_ratings, self._rank = mean_ratings, rank
        rng = self._rng(0, _SHARED)
        self._items = rng.gamma(2.0, 0.5, (num_items, rank))  # mean 1
        popularity = np.arange(1, num_items + 1) ** -self.exponent
        self._reach = np.cumsum(popularity) / popularity.sum()
        self._names = rng.permutation(num_items)

    def make(self, sample: int, rng: np.random.Generator) -> Mapping[str, Any]:
        mean = np.log(self._mean_ratings) - self.spread**2 / 2
        count = min(max(1, round(rng.lognormal(mean, self.spread))), len(self._names))
        # An item is drawn once: draw more and keep the distinct ones.
        ranks = np.searchsorted(self._reach, rng.random(count + count // 2 + 4))
        items = np.sort(self._names[_first(ranks, count)])
        user = rng.dirichlet(np.ones(self._rank))
        scores = self.mean * (self._items[items] @ user) + rng.normal(0.0, 0.5, len(items))
        return {"items": items, "ratings": np.clip(np.rint(scores), 1.0, 5.0)}


def _first(values: IntArray, count: int) -> IntArray:
    """The first `count` distinct values, or fewer if there are fewer."""
    _, where = np.unique(values, return_index=True)
    chosen: IntArray = values[np.sort(where)[:count]]
    return chosen


def generated_ratings(
    num_users: int = 10_000, num_items: int = 1_000, mean_ratings: float = 50.0, rank: int = 8, seed: int = 0
) -> GeneratedSource:
    """Ratings of 1 to 5 by users who rate few items, for `NMF`.

    The number of ratings of a user is log-normal. Popularity of items is a power law. Netflix's set has
    480,189 users, 17,770 films and 209 ratings per user, with a mean of 3.6.

    Args:
        num_users, num_items: >= 1.
        mean_ratings: per user, about, >= 1.
        rank: factors behind the ratings, >= 1.
        seed: of the set, >= 0.

    Raises:
        InputError: an argument is out of range.
    """
    check_counts(
        "generated_ratings",
        num_users=num_users,
        num_items=num_items,
        mean_ratings=mean_ratings,
        rank=rank,
        seed=seed,
    )
    return _Ratings(num_users, num_items, mean_ratings, rank, seed)


class _Documents(GeneratedSource):
    ragged = ("words",)
    exponent = 1.07
    """Exponent of the power law of words."""

    background = 0.3
    """Share of tokens that are of no topic."""

    def __init__(
        self, num_documents: int, num_words: int, mean_words: float, num_topics: int, seed: int
    ) -> None:
        super().__init__(num_documents, seed, num_words=num_words)
        self._mean_words, self._num_topics = mean_words, num_topics
        frequency = np.arange(1, num_words + 1) ** -self.exponent
        self._reach = np.cumsum(frequency) / frequency.sum()
        self._shifts = self._rng(0, _SHARED).integers(num_words, size=num_topics)

    def make(self, sample: int, rng: np.random.Generator) -> Mapping[str, Any]:
        count = max(1, rng.poisson(self._mean_words))
        topics = rng.choice(self._num_topics, count, p=rng.dirichlet(np.full(self._num_topics, 0.1)))
        ranks = np.searchsorted(self._reach, rng.random(count))
        # A topic has the same power law, but begins with words of its own.
        shifts = np.where(rng.random(count) < self.background, 0, self._shifts[topics])
        return {"words": np.sort((ranks + shifts) % len(self._reach))}


def generated_documents(
    num_documents: int = 10_000,
    num_words: int = 5_000,
    mean_words: float = 90.0,
    num_topics: int = 20,
    seed: int = 0,
) -> GeneratedSource:
    """Bags of words of planted topics, for `LDA`.

    Frequencies of words are a power law. PubMed's abstracts are 8.2 million documents of 90 words on average,
    with 141,043 different words.

    Args:
        num_documents, num_words: >= 1.
        mean_words: per document, >= 1.
        num_topics: behind the words, >= 1.
        seed: of the set, >= 0.

    Raises:
        InputError: an argument is out of range.
    """
    check_counts(
        "generated_documents",
        num_documents=num_documents,
        num_words=num_words,
        mean_words=mean_words,
        num_topics=num_topics,
        seed=seed,
    )
    return _Documents(num_documents, num_words, mean_words, num_topics, seed)


class _Classes(GeneratedSource):
    ragged = ("indices", "values")
    noise = 0.1
    """Share of samples with a label at random."""

    own = 0.2
    """Share of a sample's features that its class draws from its own few."""

    def __init__(
        self, num_samples: int, num_features: int, num_classes: int, num_nonzero: int, seed: int
    ) -> None:
        super().__init__(num_samples, seed, num_features=num_features, num_classes=num_classes)
        self._num_features, self._num_classes = num_features, num_classes
        self._num_nonzero = num_nonzero

    def make(self, sample: int, rng: np.random.Generator) -> Mapping[str, Any]:
        label = int(rng.integers(self._num_classes))
        num_own = round(self.own * self._num_nonzero)
        features = rng.integers(self._num_features, size=self._num_nonzero)
        # The features of a class: an arithmetic progression, so that nothing has to be stored.
        places = rng.integers(2 * self._num_nonzero, size=num_own)
        features[:num_own] = (label * 7919 + places * 104_729) % self._num_features
        indices = np.unique(features)
        if rng.random() < self.noise:
            label = int(rng.integers(self._num_classes))
        return {"indices": indices, "values": rng.uniform(0.5, 1.5, len(indices)), "labels": label}


def generated_classes(
    num_samples: int = 10_000,
    num_features: int = 10_000,
    num_classes: int = 20,
    num_nonzero: int = 50,
    seed: int = 0,
) -> GeneratedSource:
    """Sparse samples of classes, for `MLR`; a tenth of the labels is random.

    Args:
        num_samples, num_features, num_classes: >= 1.
        num_nonzero: features per sample, about; 1 to `num_features`.
        seed: of the set, >= 0.

    Raises:
        InputError: an argument is out of range.
    """
    check_counts(
        "generated_classes",
        num_samples=num_samples,
        num_features=num_features,
        num_classes=num_classes,
        num_nonzero=num_nonzero,
        seed=seed,
    )
    if num_nonzero > num_features:
        raise InputError(
            f"data.args.num_nonzero of generated_classes: got {num_nonzero}, "
            f"allowed: at most num_features ({num_features})"
        )
    return _Classes(num_samples, num_features, num_classes, num_nonzero, seed)


class _Regression(GeneratedSource):
    ragged = ("rows", "values")

    def __init__(
        self,
        num_features: int,
        num_observations: int,
        num_nonzero: int,
        num_true: int,
        noise: float,
        seed: int,
    ) -> None:
        super().__init__(num_features, seed, num_observations=num_observations)
        self._num_observations, self._num_nonzero = num_observations, num_nonzero
        rng = self._rng(0, _SHARED)
        true = np.sort(rng.choice(num_features, num_true, replace=False))
        self.weights: Array = np.zeros(num_features)
        self.weights[true] = rng.choice([-1.0, 1.0], num_true) * rng.uniform(0.5, 1.5, num_true)
        self.target: Array = noise * rng.normal(size=num_observations)
        for feature in true.tolist():
            made = self.make(feature, self._rng(feature))
            self.target[made["rows"]] += self.weights[feature] * made["values"]

    def make(self, sample: int, rng: np.random.Generator) -> Mapping[str, Any]:
        rows = np.unique(rng.integers(self._num_observations, size=self._num_nonzero))
        return {"rows": rows, "values": rng.normal(size=len(rows))}


def generated_regression(
    num_features: int = 10_000,
    num_observations: int = 2_000,
    num_nonzero: int = 40,
    num_true: int = 50,
    noise: float = 0.1,
    seed: int = 0,
) -> GeneratedSource:
    """Sparse features, few of them with a weight, for `Lasso`; samples are features.

    Args:
        num_features, num_observations: >= 1.
        num_nonzero: observations per feature, about, >= 1.
        num_true: features with a weight other than 0; 1 to `num_features`.
        noise: standard deviation of the target's noise, >= 0.
        seed: of the set, >= 0.

    Raises:
        InputError: an argument is out of range.
    """
    check_counts(
        "generated_regression",
        num_features=num_features,
        num_observations=num_observations,
        num_nonzero=num_nonzero,
        num_true=num_true,
        seed=seed,
    )
    if num_true > num_features or not noise >= 0:
        raise InputError(
            f"data.args of generated_regression: got num_true {num_true} and noise {noise}, "
            f"allowed: at most num_features ({num_features}), and >= 0"
        )
    return _Regression(num_features, num_observations, num_nonzero, num_true, noise, seed)
