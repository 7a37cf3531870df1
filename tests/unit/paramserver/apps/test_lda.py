"""Topics are drawn from the right distribution, counts stay right, and planted topics are found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from python_loops import sample_in_python
from sklearn.decomposition import LatentDirichletAllocation

from hpcbal.errors import InputError
from hpcbal.paramserver.alone import Alone, train_alone
from hpcbal.paramserver.api.batch import gather_batch
from hpcbal.paramserver.api.columns import Ragged
from hpcbal.paramserver.apps import LDA
from hpcbal.paramserver.apps.lda import Counts, Prior, sample
from hpcbal.paramserver.apps.sources import ArraySource

NUM_WORDS = 60
NUM_TOPICS = 4


def documents(num_documents: int = 150) -> ArraySource:
    """Documents of planted topics, each with 15 words of its own."""
    rng = np.random.default_rng(2)
    lists = []
    for _ in range(num_documents):
        topics = rng.choice(NUM_TOPICS, rng.integers(0, 40), p=rng.dirichlet(np.full(NUM_TOPICS, 0.2)))
        lists.append((topics * 15 + rng.integers(0, 15, len(topics))).astype(np.int64))
    return ArraySource({"words": Ragged.of(lists, "int64")}, {"num_words": NUM_WORDS})


@pytest.mark.parametrize("draw", [sample_in_python, sample])
def test_a_topic_is_drawn_with_its_conditional_probability(draw: Any) -> None:
    rng = np.random.default_rng(0)
    prior = Prior(0.3, 0.2, 0.2 * 7)
    topics = np.array([0, 2, 2, 4, 1, 0], np.int32)
    rows = np.array([0, 1, 1, 2, 0, 2], np.int32)
    counts = (rng.integers(0, 6, (3, 5)) * (rng.random((3, 5)) < 0.5)).astype(np.int32)
    np.add.at(counts, (rows, topics), 1)
    totals = counts.sum(axis=0) + rng.integers(0, 9, 5)
    num_draws = 4000
    hits = np.zeros(5)
    for number in range(num_draws):
        drawn, shared = topics.copy(), Counts.of(counts, totals)
        uniforms = np.full(len(topics), (number + 0.5) / num_draws)
        draw(rows, np.array([0, len(topics)]), uniforms, drawn, shared, prior)
        hits[drawn[0]] += 1  # the first draw of the document: all other topics are still the given ones
        assert (shared.counts == counts).all()
        assert (shared.totals == totals).all()
    own = np.bincount(topics, minlength=5)
    for array in (own, totals, counts[0]):
        array[topics[0]] -= 1
    weights = (own + prior.alpha) * (counts[0] + prior.beta) / (totals + prior.beta_sum)
    assert hits / num_draws == pytest.approx(weights / weights.sum(), abs=2 / num_draws)


def test_counts_are_those_of_the_topics_and_the_likelihood_is_that_of_the_formula() -> None:
    source = documents()
    alone, metrics = train_alone(
        LDA(source, num_topics=NUM_TOPICS, alpha=0.2), 3, mini_batch=20, num_data_blocks=4
    )
    words = np.concatenate([block.columns["words"].values for block in alone.data_blocks])  # type: ignore[union-attr]
    topics = np.concatenate([block.state["topics"].values for block in alone.data_blocks])  # type: ignore[union-attr]
    counts = np.zeros((NUM_WORDS, NUM_TOPICS), int)
    np.add.at(counts, (words, topics), 1)
    assert (alone.values["word_topics"] == counts).all()
    assert (alone.values["topic_totals"] == counts.sum(axis=0)).all()

    def log_beta(numbers: Any, prior: float) -> float:
        own = sum(math.lgamma(n + prior) - math.lgamma(prior) for n in numbers)
        return own + math.lgamma(len(numbers) * prior) - math.lgamma(sum(numbers) + len(numbers) * prior)

    lists = [
        block.state["topics"][i] for block in alone.data_blocks for i in range(len(block.state["topics"]))
    ]
    own = [np.bincount(each, minlength=NUM_TOPICS) for each in lists]
    expected = sum(log_beta(each, 0.2) for each in own) + sum(log_beta(each, 0.01) for each in counts.T)
    assert metrics[-1]["log_likelihood"] == pytest.approx(expected)
    assert metrics[-1]["loss"] == pytest.approx(-expected / len(words))
    of_words = (counts + 0.01) / (counts.sum(axis=0) + 0.01 * NUM_WORDS)
    of_documents = [(each + 0.2) / (each.sum() + 0.2 * NUM_TOPICS) for each in own]
    spread = np.repeat(of_documents, [len(each) for each in lists], axis=0)
    perplexity = np.exp(-np.log((spread * of_words[words]).sum(axis=1)).mean())
    assert metrics[-1]["perplexity"] == pytest.approx(perplexity)


def test_planted_topics_are_found_as_well_as_by_scikit_learn() -> None:
    source = documents()
    alone, metrics = train_alone(
        LDA(source, num_topics=NUM_TOPICS, alpha=0.2), 60, mini_batch=30, num_data_blocks=4
    )
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.5
    by_plant = alone.values["word_topics"].reshape(NUM_TOPICS, 15, NUM_TOPICS).sum(axis=1)
    shares = by_plant.max(axis=1) / by_plant.sum(axis=1)
    assert (shares > 0.9).all()
    assert len(set(by_plant.argmax(axis=1))) == NUM_TOPICS
    words = source.read(np.arange(source.num_samples))["words"]
    assert isinstance(words, Ragged)
    matrix = np.array([np.bincount(words[i], minlength=NUM_WORDS) for i in range(len(words))])
    peer = LatentDirichletAllocation(
        NUM_TOPICS, doc_topic_prior=0.2, topic_word_prior=0.01, max_iter=60, random_state=0
    ).fit(matrix)
    shown = peer.components_ / peer.components_.sum(axis=1, keepdims=True)
    likelihood = np.log(peer.transform(matrix) @ shown)
    peer_perplexity = np.exp(-(matrix * likelihood).sum() / matrix.sum())
    assert metrics[-1]["perplexity"] < 1.1 * peer_perplexity


def test_a_step_has_the_same_updates_to_the_last_bit_however_it_is_split() -> None:
    app = LDA(documents(), num_topics=NUM_TOPICS)
    alone = Alone(app, mini_batch=20, num_data_blocks=3)

    def push(numbers: list[int]) -> tuple[Any, Any]:
        total, counts = np.zeros((1, NUM_TOPICS), int), np.zeros((NUM_WORDS, NUM_TOPICS), int)
        slices = [(alone.data_blocks[number], 0, np.arange(20)) for number in numbers]
        batch = gather_batch(slices, seed=0, epoch=0)
        rows = app.needs(batch)["word_topics"]
        pulled = {
            "word_topics": alone.values["word_topics"][rows],
            "topic_totals": alone.values["topic_totals"],
        }
        updates = app.compute(batch, pulled)
        counts[rows] = updates["word_topics"]
        total += updates["topic_totals"]
        return counts, total

    whole, parts = push([0, 1, 2]), [push([0]), push([1, 2])]
    assert whole[0].any()
    assert (whole[0] == parts[0][0] + parts[1][0]).all()
    assert (whole[1] == parts[0][1] + parts[1][1]).all()


def test_documents_without_words_are_allowed() -> None:
    empty = np.empty(0, np.int64)
    source = ArraySource({"words": Ragged.of([empty, np.array([1, 1, 0]), empty])}, {"num_words": 2})
    _, metrics = train_alone(LDA(source, num_topics=2), 2, mini_batch=1, num_data_blocks=3)
    assert math.isfinite(metrics[-1]["loss"])


def test_wrong_arguments_are_errors() -> None:
    with pytest.raises(InputError, match=r"args.num_topics of LDA: got 1, allowed: a number >= 2"):
        LDA(documents(), num_topics=1)
    with pytest.raises(InputError, match=r"args.beta of LDA: got 0, allowed: a number > 0"):
        LDA(documents(), beta=0)
