"""Pruning rules against a plain ASHA, and on any curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbal.policies.pruning.rules import Asha, Candidate, Median, PruneRule, Ruling

Curves = Sequence[Sequence[float]]
NUM_EPOCHS = 9
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
Jobs = list[tuple[int, int]]  # (configuration, epochs that it has then been trained for)


def curves(is_ranked: bool = False) -> st.SearchStrategy[Curves]:
    """1 to 20 curves of NUM_EPOCHS; if ranked, a better one is better in every epoch."""
    if is_ranked:
        return st.permutations(range(20)).flatmap(
            lambda order: st.integers(1, 20).map(lambda n: [[float(i)] * NUM_EPOCHS for i in order[:n]])
        )
    value = st.integers(0, 9).map(lambda i: i / 10 if i else -math.inf)
    return st.lists(st.lists(value, min_size=NUM_EPOCHS, max_size=NUM_EPOCHS), min_size=1, max_size=20)


def plain_asha(values: Curves, eta: int, first: int, max_epochs: int) -> Jobs:
    """[ASHA] Alg. 2 with one worker and a given list of configurations, until nothing can be promoted."""
    rungs = [first * eta**k for k in range(20) if first * eta**k < max_epochs] + [max_epochs]
    results: list[dict[int, float]] = [{} for _ in rungs]
    promoted: list[set[int]] = [set() for _ in rungs]
    new = iter(range(len(values)))
    jobs: Jobs = []

    def get_job() -> tuple[int, int] | None:
        for k in reversed(range(len(rungs) - 1)):
            ordered = sorted(results[k], key=lambda i: (-results[k][i], i))
            for i in ordered[: len(ordered) // eta]:
                if i not in promoted[k]:
                    promoted[k].add(i)
                    return i, k + 1
        i = next(new, None)
        return None if i is None else (i, 0)

    while (job := get_job()) is not None:
        i, k = job
        results[k][i] = max(values[i][: rungs[k]])
        jobs.append((i, rungs[k]))
    return jobs


@dataclass
class Sweep:
    """Trains DNNs epoch by epoch and asks the rule whenever one of them is at the end of an epoch."""

    rule: PruneRule
    values: Curves
    max_epochs: int = NUM_EPOCHS
    epochs: list[int] = field(default_factory=list)
    pruned: set[int] = field(default_factory=set)
    log: list[tuple[list[int], Ruling]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.epochs = [0] * len(self.values)

    def ask(self) -> set[int]:
        """The DNNs that may train on now."""
        candidates = [
            Candidate(
                str(i), self.values[i][:epochs], self.max_epochs, i not in self.pruned and not self.is_done(i)
            )
            for i, epochs in enumerate(self.epochs)
        ]
        ruling = self.rule.rule(candidates)
        self.log.append((list(self.epochs), ruling))
        self.pruned |= {int(name) for name in ruling.pruned}
        out = self.pruned | {int(name) for name in ruling.paused}
        return {i for i in range(len(self.values)) if i not in out and not self.is_done(i)}

    def is_done(self, i: int) -> bool:
        return self.epochs[i] == self.max_epochs

    def train(self, choose: Callable[[set[int]], Sequence[int]]) -> None:
        """Train one epoch of the chosen DNNs, again and again, until none may train."""
        while able := self.ask():
            for i in choose(able):
                self.epochs[i] += 1
        assert all(self.is_done(i) or i in self.pruned for i in range(len(self.values))), "some wait forever"


def one_worker(eta: int, first: int, sweep: Sweep) -> Jobs:
    """Train one DNN at a time, from rung to rung, the highest rung first, as [ASHA] Alg. 2 does."""
    jobs: Jobs = []
    while able := sweep.ask():
        i = min(
            able, key=lambda i: (-sweep.epochs[i], -max(sweep.values[i][: sweep.epochs[i]], default=0.0), i)
        )
        before = sweep.epochs[i]
        sweep.epochs[i] = min(sweep.max_epochs, before * eta if before else first)
        jobs.append((i, sweep.epochs[i]))
    return jobs


@UNTIMED
@given(curves(), st.integers(2, 4), st.integers(1, 3), st.integers(2, NUM_EPOCHS))
def test_one_worker_promotes_like_algorithm_2(values: Curves, eta: int, first: int, max_epochs: int) -> None:
    expected = plain_asha(values, eta, first, max_epochs)
    found = one_worker(eta, min(first, max_epochs), Sweep(Asha(eta, first), values, max_epochs))
    assert [(i, min(epochs, max_epochs)) for i, epochs in expected] == found[: len(expected)]
    # Then only rungs are left that no DNN can reach any more, and each promotes one at least.
    assert len(found) - len(expected) <= len(Asha(eta, first).rungs(max_epochs))


@UNTIMED
@given(curves(), st.integers(2, 4), st.integers(1, 3))
def test_dnns_that_train_side_by_side_halve_at_every_rung(values: Curves, eta: int, first: int) -> None:
    sweep = Sweep(Asha(eta, first), values)
    sweep.train(sorted)
    left = len(values)
    for rung in Asha(eta, first).rungs(NUM_EPOCHS):
        assert sum(epochs >= rung for epochs in sweep.epochs) == left
        left = max(1, left // eta)
    assert sum(map(sweep.is_done, range(len(values)))) == left


@UNTIMED
@given(curves(), st.integers(2, 4), st.integers(1, 3), st.data())
def test_only_the_best_share_of_a_rung_is_promoted(
    values: Curves, eta: int, first: int, data: st.DataObject
) -> None:
    rule = Asha(eta, first)
    sweep = Sweep(rule, values)
    sweep.train(lambda able: data.draw(st.lists(st.sampled_from(sorted(able)), min_size=1, unique=True)))
    for (before, _), (after, _) in zip(sweep.log, sweep.log[1:], strict=False):
        for rung in rule.rungs(NUM_EPOCHS):
            arrived = [i for i, epochs in enumerate(before) if epochs >= rung]
            ranked = sorted(arrived, key=lambda i: -max(values[i][:rung]))
            promoted = [i for i in arrived if before[i] == rung < after[i]]
            is_closed = not any(epochs < rung and i not in sweep.pruned for i, epochs in enumerate(before))
            share = len(arrived) // eta
            assert set(promoted) <= set(ranked[: max(1, share) if is_closed else share])


@UNTIMED
@given(curves(is_ranked=True), st.integers(2, 4), st.data())
def test_the_best_curve_of_a_ranked_set_is_never_pruned(
    values: Curves, eta: int, data: st.DataObject
) -> None:
    best = max(range(len(values)), key=lambda i: values[i][0])
    for rule in (Asha(eta, 1), Median(1, 1)):
        sweep = Sweep(rule, values)
        sweep.train(lambda able: data.draw(st.lists(st.sampled_from(sorted(able)), min_size=1, unique=True)))
        assert sweep.is_done(best)


@UNTIMED
@given(curves(), st.integers(1, 5), st.integers(1, 5))
def test_the_median_rule_spares_the_best_course_and_whoever_lacks_peers(
    values: Curves, warmup_epochs: int, min_peers: int
) -> None:
    sweep = Sweep(Median(warmup_epochs, min_peers), values)
    sweep.train(sorted)
    for epochs, ruling in sweep.log:
        assert not ruling.paused
        for name in ruling.pruned:
            own = epochs[int(name)]
            others = [i for i, each in enumerate(epochs) if each >= own and i != int(name)]
            means = [math.fsum(values[i][:own]) / own for i in others]
            assert own >= warmup_epochs
            assert len(others) >= min_peers
            assert max(values[int(name)][:own]) < max(means)
    assert any(map(sweep.is_done, range(len(values))))
