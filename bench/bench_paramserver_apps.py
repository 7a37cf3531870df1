"""Apps of parameter servers on one worker, without servers, beside the libraries that people use.

Every app trains alone in this process (`hpcbal.paramserver.alone`, the semantics of synchronous training),
and so does its peer of scikit-learn or Keras, on the same data with the same objective. A row shows the
objective over epochs (the peer: iterations) and over seconds, evaluation left out. Figures of each app:

- `<app>_objective`: its last objective over the peer's last one. 1 is as good; less is better.
- `<app>_seconds`: its seconds until its objective is within 1 % of the worse of both last ones, over those of
  the peer. Less is better. The peer's seconds are of the first listed number of iterations that gets there.

    python bench/bench_paramserver_apps.py --json apps.json          # about 1 minute, mostly of peers
    python bench/bench_paramserver_apps.py --apps mlr lda --scale 0.2   # short
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import decomposition, linear_model
from support.provenance import provenance

from hpcbal.paramserver import apps
from hpcbal.paramserver.alone import Alone
from hpcbal.paramserver.apps.sources import ArraySource
from hpcbal.paramserver.contract import App, IntArray, SampleSource

LIMITS = {
    "mlr_objective": 1.01,
    "nmf_objective": 1.05,
    "lda_objective": 1.1,
    "lasso_objective": 1.01,
    "lasso_in_blocks_objective": 1.01,
}
NEAR = 1.01


@dataclass(frozen=True, slots=True)
class Point:
    """Where training stands after some epochs.

    Attributes:
        epochs: of the app, or iterations of the peer.
        seconds: of training.
        objective: the smaller, the better.
    """

    epochs: int
    seconds: float
    objective: float


def train(
    app: App, num_epochs: int, mini_batch: int, metric: str = "loss", num_data_blocks: int = 8
) -> list[Point]:
    """Train an app alone; a point for every epoch."""
    start = time.perf_counter()
    alone = Alone(app, mini_batch=mini_batch, num_data_blocks=num_data_blocks)
    seconds = time.perf_counter() - start
    points = []
    for epoch in range(num_epochs):
        start = time.perf_counter()
        alone.train_epoch()
        seconds += time.perf_counter() - start
        points.append(Point(epoch + 1, seconds, alone.evaluate()[metric]))
    return points


def follow(
    fit: Callable[[int], Any], objective: Callable[[Any], float], iterations: Sequence[int]
) -> list[Point]:
    """Fit the peer anew for each number of iterations."""
    points = []
    for count in iterations:
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has not converged: that is the point
            fitted = fit(count)
        points.append(Point(count, time.perf_counter() - start, objective(fitted)))
    return points


def whole(source: SampleSource) -> Any:
    """All samples of a source."""
    ids: IntArray = np.arange(source.num_samples)
    return source.read(ids)


def bench_mlr(scale: float) -> tuple[list[Point], list[Point]]:
    """Digits, L2-regularised, against the stochastic solver `saga`."""
    source, l2 = apps.labelled(), 1e-3
    columns = whole(source)
    x, y = columns["features"], columns["labels"]

    def objective(model: Any) -> float:
        return float(
            -model.predict_log_proba(x)[np.arange(len(y)), y].mean() + l2 / 2 * np.square(model.coef_).sum()
        )

    def fit(count: int) -> Any:
        model = linear_model.LogisticRegression(C=1 / (l2 * len(x)), solver="saga", max_iter=count, tol=0.0)
        return model.fit(x, y)

    app = apps.MLR(source, learning_rate=8.0, decay=0.1, l2=l2)
    return train(app, max(1, round(200 * scale)), 200), follow(fit, objective, _counts(200, scale))


def bench_nmf(scale: float) -> tuple[list[Point], list[Point]]:
    """Digits at rank 16, every entry known, against coordinate descent."""
    source = apps.labelled()
    x = whole(source)["features"]

    def fit(count: int) -> Any:
        model = decomposition.NMF(16, init="random", random_state=0, max_iter=count, tol=0.0)
        return model.fit_transform(x) @ model.components_

    app = apps.DenseNMF(source, rank=16)
    points = train(app, max(1, round(60 * scale)), 200)
    return points, follow(fit, lambda product: float(np.square(x - product).mean()), _counts(100, scale))


def bench_lda(scale: float) -> tuple[list[Point], list[Point]]:
    """The texts of Python's library, 20 topics: perplexity, against variational Bayes."""
    from scipy.sparse import csr_matrix

    source = apps.library_texts()
    words = whole(source)["words"]
    owners = np.repeat(np.arange(len(words)), words.lengths)
    shape = (len(words), int(source.facts["num_words"]))
    counts = csr_matrix((np.ones(len(owners)), (owners, words.values)), shape)

    def fit(count: int) -> Any:
        model = decomposition.LatentDirichletAllocation(
            20, doc_topic_prior=0.1, topic_word_prior=0.01, max_iter=count, random_state=0
        )
        return model.fit(counts)

    def perplexity(model: Any) -> float:
        of_words = model.components_ / model.components_.sum(axis=1, keepdims=True)
        likelihood = (model.transform(counts)[owners] * of_words.T[words.values]).sum(axis=1)
        return float(np.exp(-np.log(likelihood).mean()))

    app = apps.LDA(source, num_topics=20, alpha=0.1, beta=0.01)
    points = train(app, max(1, round(150 * scale)), 500, "perplexity")
    return points, follow(fit, perplexity, _counts(50, scale))


def bench_lasso(
    scale: float, mini_batch: int = 10_000, num_data_blocks: int = 1
) -> tuple[list[Point], list[Point]]:
    """10,000 sparse features of 2,000 observations, against coordinate descent.

    One worker needs one data block, and then takes all features in a turn.
    """
    from scipy.sparse import csc_matrix

    source: Any = apps.generated_regression()
    read = whole(source)
    source = ArraySource(read, source.facts, source.target)  # both start from memory
    rows, values, l1 = read["rows"], read["values"], 0.003
    x = csc_matrix((values.values, rows.values, rows.offsets), (len(source.target), source.num_samples))

    def objective(model: Any) -> float:
        errors = source.target - x @ model.coef_
        return float(errors @ errors / (2 * len(errors)) + l1 * np.abs(model.coef_).sum())

    def fit(count: int) -> Any:
        return linear_model.Lasso(alpha=l1, fit_intercept=False, max_iter=count, tol=1e-9).fit(
            x, source.target
        )

    num_epochs = max(1, round(30 * scale))
    points = train(apps.Lasso(source, l1=l1), num_epochs, mini_batch, num_data_blocks=num_data_blocks)
    return points, follow(fit, objective, _counts(50, scale))


def bench_keras(scale: float) -> tuple[list[Point], list[Point]]:
    """Digits and a residual network: stochastic gradient descent, against `fit` of Keras."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from hpcbal.paramserver.networks import KerasNetwork

    source, rate, batch, depth = apps.samples(), 0.05, 32, 8
    app = KerasNetwork(source, "hpcbal.models:resnet", {"depth": depth, "width": 8}, learning_rate=rate)
    app.tables()  # builds the model; Keras, below, does so outside the measured time as well
    columns, num_epochs = whole(source), max(1, round(20 * scale))
    own = train(app, num_epochs, batch)

    import keras

    from hpcbal.models import resnet

    keras.utils.set_random_seed(0)
    model = resnet((8, 8, 1), 10, depth=depth, width=8)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss)
    peer, seconds = [], 0.0
    for epoch in range(num_epochs):
        start = time.perf_counter()
        model.fit(columns["samples"], columns["labels"], batch_size=batch, verbose=0)
        seconds += time.perf_counter() - start
        objective = float(model.evaluate(columns["samples"], columns["labels"], batch_size=512, verbose=0))
        peer.append(Point(epoch + 1, seconds, objective))
    return own, peer


BENCHES: dict[str, Callable[[float], tuple[list[Point], list[Point]]]] = {
    "mlr": bench_mlr,
    "nmf": bench_nmf,
    "lda": bench_lda,
    "lasso": bench_lasso,
    "lasso_in_blocks": partial(bench_lasso, mini_batch=200, num_data_blocks=8),  # as several workers need
    "keras": bench_keras,
}


def figures(name: str, own: Sequence[Point], peer: Sequence[Point]) -> dict[str, float]:
    """Quality and time of an app over those of its peer."""
    goal = NEAR * max(own[-1].objective, peer[-1].objective)
    own_s, peer_s = (
        next(each.seconds for each in points if each.objective <= goal) for points in (own, peer)
    )
    return {f"{name}_objective": own[-1].objective / peer[-1].objective, f"{name}_seconds": own_s / peer_s}


def _counts(most: int, scale: float) -> list[int]:
    """Numbers of iterations: 1, 2, 5, 10, 20, ... up to a share of `most`."""
    last = max(1, round(most * scale))
    steps = [digit * 10**power for power in range(4) for digit in (1, 2, 5)]
    return [*(step for step in steps if step < last), last]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--apps", nargs="+", choices=BENCHES, default=list(BENCHES))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the epochs (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    result: dict[str, Any] = {}
    for name in args.apps:
        own, peer = BENCHES[name](args.scale)
        for who, points in ((name, own), ("peer", peer)):
            shown = [point for point in points if who == "peer" or point.epochs in _counts(len(points), 1.0)]
            for point in shown:
                print(
                    f"{who:6} {point.epochs:4} epochs {point.seconds:9.3f} s  objective {point.objective:.6g}"
                )
        result |= figures(name, own, peer)
        result |= {f"{name}_epoch_s": own[-1].seconds / own[-1].epochs}
    for figure, value in result.items():
        limit = f" (at most {LIMITS[figure]})" if figure in LIMITS else ""
        print(f"{figure} {value:.4g}{limit}")
    if args.json:
        args.json.write_text(json.dumps(result | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
