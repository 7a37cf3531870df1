"""How much better the committee of a search `for: committee` is than that of one `for: best`, or at random.

    python bench/bench_search.py --json search.json

27 models of the digits, the first 8 drawn at random; 40 seeds. Proposals and their values are
those of a run (`hpcbal.searching`, `hpcbal.ensembling.selection`); the models are trained here, one after
another. A model is a ridge regression on random features of some pixels: it takes milliseconds, so that there
can be many seeds. `--models networks` trains small networks with PyTorch instead, which takes a minute for a
seed. A search sees a third (of networks: a quarter) of the samples. The committee is chosen greedily on
these, and its negative log-likelihood is measured on as many others, which nothing else sees. All searches of
a seed have the same data, the same first models, and the same random numbers of models by number.

- `committee_over_best`, `committee_over_random`: this loss over that of `for: best`, and of a search that is
  random to its end; geometric means over the seeds (below 1: better).
- `best_over_random`: the same of `for: best`.
- `committee_over_best_seen`: as the first, on the samples that the search sees.
- `num_better`: seeds in which the committee of `for: committee` is better than that of `for: best`.
- `error_of_log`: standard error of the logarithm of `committee_over_best` over the seeds.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from support.figures import parser_of, write_figures

from hpcbal.config.schema.prune import OpenSearchConfig
from hpcbal.ensembling.selection import changes_by_each, greedy_selection, log_loss_of_mean
from hpcbal.searching import Result, propose

NUM_DNNS, NUM_FIRST, MAX_EPOCHS, BATCH_SIZE = 27, 8, 12, 32
NUM_SEEDS, MOST_ROUNDS = 40, 50
MODES = ("random", "best", "committee")
MEAN, STD, NUM_PIXELS, NUM_CLASSES = 0.305, 0.376, 64, 10
NUM_PER_PART = 400
NUM_FEATURES, UNITS = (30, 100, 250), (16, 48, 144)
SHAPES = (np.cos, np.tanh, lambda z: np.maximum(z, 0.0))
ACTIVATIONS = (torch.nn.ReLU, torch.nn.Tanh, torch.nn.GELU)

SPACES: Mapping[str, Mapping[str, Any]] = {
    "features": {
        "number": {"choice": NUM_FEATURES},
        "width": {"log_uniform": [0.003, 1.0]},
        "ridge": {"log_uniform": [1e-5, 1.0]},
        "sharpness": {"log_uniform": [1.0, 30.0]},
        "shape": {"choice": range(len(SHAPES))},
        "pixels": {"uniform": [0.2, 1.0]},
    },
    "networks": {
        "learning_rate": {"log_uniform": [0.003, 0.3]},
        "units": {"choice": UNITS},
        "layers": {"integers": [1, 3]},
        "dropout": {"uniform": [0.0, 0.4]},
        "activation": {"choice": range(len(ACTIVATIONS))},
    },
}

Array = NDArray[np.float64]
Values = Mapping[str, float | int]
Trained = tuple[Array, Array]
"""Probabilities of the right classes of the samples that a search sees, and of the others."""


@dataclass(frozen=True)
class Digits:
    """All samples, and the rows to train on, those that searches see, and those that only measure."""

    x: Array
    y: NDArray[np.int64]
    parts: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, models: str, seed: int) -> Digits:
        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(x))
        if models == "features":
            order = order[: 3 * NUM_PER_PART]
            cuts = [NUM_PER_PART, 2 * NUM_PER_PART]
        else:
            cuts = [len(x) // 2, len(x) * 3 // 4]
        return cls((x / 16.0 - MEAN) / STD, y, tuple(np.split(order, cuts)))


def ridge(values: Values, seed: int, digits: Digits) -> Trained:
    """Fit a ridge regression on random features; the softmax of its scaled outputs predicts."""
    random, number = np.random.default_rng(seed), NUM_FEATURES[int(values["number"])]
    weights = random.normal(size=(NUM_PIXELS, number)) * values["width"]
    shifts = random.uniform(0.0, 2.0 * np.pi, number)
    weights *= random.random((NUM_PIXELS, 1)) < values["pixels"]
    features = SHAPES[int(values["shape"])](digits.x @ weights + shifts)
    train, seen, unseen = digits.parts
    features = (features - features[train].mean(axis=0)) / (features[train].std(axis=0) + 1e-9)
    own, targets = features[train], np.eye(NUM_CLASSES)[digits.y[train]] - 1.0 / NUM_CLASSES
    penalty = values["ridge"] * len(train) * np.eye(number)
    logits = values["sharpness"] * (features @ np.linalg.solve(own.T @ own + penalty, own.T @ targets))
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    truth = exponentials[np.arange(len(digits.y)), digits.y] / exponentials.sum(axis=1)
    return truth[seen], truth[unseen]


def network(values: Values, seed: int, digits: Digits) -> Trained | None:
    """Train a network; its best epoch predicts. Return None if its loss was never a number."""
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = []
    width, units = NUM_PIXELS, UNITS[int(values["units"])]
    for _ in range(int(values["layers"])):
        activation = ACTIVATIONS[int(values["activation"])]()
        layers += [torch.nn.Linear(width, units), activation, torch.nn.Dropout(values["dropout"])]
        width = units
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, NUM_CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=values["learning_rate"], momentum=0.9)
    x, y = torch.tensor(digits.x, dtype=torch.float32), torch.tensor(digits.y)
    train, *others = (torch.tensor(part) for part in digits.parts)
    least, best = math.inf, None
    for _ in range(MAX_EPOCHS):
        model.train()
        for rows in train[torch.randperm(len(train))].split(BATCH_SIZE):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            truth = torch.softmax(model(x).double(), 1)[torch.arange(len(y)), y].numpy()
        seen, unseen = (truth[part.numpy()] for part in others)
        loss = float(log_loss_of_mean(seen))
        if loss < least:
            least, best = loss, (seen, unseen)
    return best


TRAIN: Mapping[str, Callable[[Values, int, Digits], Trained | None]] = {
    "features": ridge,
    "networks": network,
}


def losses_of(models: str, mode: str, seed: int) -> tuple[float, float]:
    """Do a search, and return the loss of its committee on the samples that it sees, and on others."""
    digits = Digits.of(models, seed)
    purpose = "committee" if mode == "committee" else "best"
    keys = {"samples": NUM_DNNS, "sampler": "tpe", "for": purpose, "startup": NUM_FIRST, "seed": seed}
    search = OpenSearchConfig.model_validate(
        {"name": "m-{sample}", "search": {**keys, "space": SPACES[models]}, "dnn": {}}
    )
    drawn: list[Values] = [*search.search.draws(seed, search.name)]
    drawn = drawn if mode == "random" else drawn[:NUM_FIRST]
    trained: list[Trained | None] = []
    for number in range(NUM_DNNS):
        if number == len(drawn):
            drawn.append(propose(search, _results(mode, drawn, trained), seed, more_is_better=False))
        trained.append(TRAIN[models](drawn[number], 1000 * seed + number, digits))
    seen, unseen = (np.array(rows) for rows in zip(*filter(None, trained), strict=True))
    chosen = greedy_selection(seen, log_loss_of_mean, MOST_ROUNDS)
    return chosen.loss, float(log_loss_of_mean(np.array(chosen.weights) @ unseen))


def _results(mode: str, drawn: Sequence[Values], trained: Sequence[Trained | None]) -> list[Result]:
    """Return the results of a search with the values that a run would give them."""
    rows = np.array([each[0] for each in trained if each is not None])
    if mode == "committee":
        values = iter(changes_by_each(rows, log_loss_of_mean))
    else:
        values = iter(log_loss_of_mean(rows).tolist())
    return [
        Result(own, "failed") if each is None else Result(own, "over", [next(values)])
        for own, each in zip(drawn, trained, strict=True)
    ]


def geometric_mean(of: Sequence[float], over: Sequence[float]) -> float:
    """Return the geometric mean of quotients."""
    return statistics.geometric_mean([a / b for a, b in zip(of, over, strict=True)])


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[*range(NUM_SEEDS)], metavar="N")
    parser.add_argument("--models", choices=tuple(TRAIN), default="features")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    load_before = os.getloadavg()[0]
    seen: dict[str, list[float]] = {mode: [] for mode in MODES}
    unseen: dict[str, list[float]] = {mode: [] for mode in MODES}
    for seed in args.seeds:
        for mode in MODES:
            its_seen, its_unseen = losses_of(args.models, mode, seed)
            seen[mode].append(its_seen)
            unseen[mode].append(its_unseen)
        shown = ", ".join(f"{mode} {seen[mode][-1]:.4f} {unseen[mode][-1]:.4f}" for mode in MODES)
        print(f"{seed}: loss on samples that are seen, and on others: {shown}", flush=True)
    logs = [math.log(a / b) for a, b in zip(unseen["committee"], unseen["best"], strict=True)]
    found = {
        "committee_over_best": geometric_mean(unseen["committee"], unseen["best"]),
        "committee_over_random": geometric_mean(unseen["committee"], unseen["random"]),
        "best_over_random": geometric_mean(unseen["best"], unseen["random"]),
        "committee_over_best_seen": geometric_mean(seen["committee"], seen["best"]),
        "num_better": sum(each < 0.0 for each in logs),
        "error_of_log": statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan,
    }
    for key, value in found.items():
        print(f"{key}: {value:.3f}")
    cases = {"models": args.models, "seeds": args.seeds, "seen": seen, "unseen": unseen}
    write_figures(args.json, {**found, "cases": cases, "load_before": load_before})


if __name__ == "__main__":
    main()
