"""The effect of uneven shares on learning: epochs to a target accuracy, and the cost of unweighted averaging.

Training on scanned digits is split over four unlike GPUs ([LBBSP] Fig. 4 and 8), one of which loses and
regains its bandwidth again and again. `fitted` decides the shares from their noisy times. The trainer's own
code plays the ranks one after the other, so no clock has any influence and every run gives the same result.
All ways that are compared have the same first weights and the same samples in the same steps.

- mixed: every step and every share of it is shuffled. A ResNet with batch normalisation, the only part that
  depends on how a step was split, with `even` shares, with balanced ones (`weighted`, [LBBSP] Eq. 7), and
  with balanced ones and the plain mean of the workers' means (`unweighted`, Eq. 5).
- parts: every worker has a part of the data that is as large as its share of a step, and parts hold different
  classes, like data that each worker has gathered. A network without batch normalisation. Every sample is
  seen once in an epoch; Eq. 5 counts the samples of small shares several times as much.

    python bench/bench_lbbsp_statistics.py --json out.json

The JSON holds one flat object. `epochs_balanced_over_even`: mean epochs to the target over the seeds, mixed;
`epochs_noise`: standard deviation of that ratio over the seeds. `unweighted_over_weighted`: the same for
Eq. 5 over Eq. 7, parts (`..._mixed`: mixed). A run that does not reach the target counts with all its epochs;
the ratio is then a lower bound, and `unweighted_reached` is the number of runs that reached it.
`unweighted_accuracy_lost` (`..._mixed`): accuracy in the last epoch, Eq. 7 minus Eq. 5, mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from bench_lbbsp_gpu import four_kinds
from support.provenance import provenance

from hpcbal.config import DnnConfig
from hpcbal.data.spec import SampleSpec
from hpcbal.dataplane.reader import Batch
from hpcbal.policies.batching import BATCHING, Observation, scale_shares, split_evenly

IntArray = npt.NDArray[np.int64]
Step = list[IntArray]  # ids of each worker

Curve = list[tuple[float, float]]  # epochs, validation accuracy

NUM_WORKERS, BATCH_SIZE = 4, 128
SHIFT_STEPS = 40  # steps for which a GPU keeps its bandwidth, and steps without it
NOISE = 0.03
VALIDATION_SHARE = 0.2
EVALUATIONS_PER_EPOCH = 4


@dataclass(frozen=True)
class Samples:
    """Images, float32, normalised, and their classes; the ids of both parts."""

    x: npt.NDArray[np.float32]
    y: IntArray
    train: IntArray
    validation: IntArray


@dataclass(frozen=True)
class Network:
    """A network of the comparison, and its target accuracy."""

    target: float
    settings: DnnConfig


def sgd(learning_rate: float, model: str, **args: int) -> DnnConfig:
    """A network, trained by SGD with momentum."""
    optimizer = {"name": "sgd", "learning_rate": learning_rate, "momentum": 0.9}
    dnn = {"name": "dnn", "model": model, "args": args, "optimizer": optimizer, "batch_size": BATCH_SIZE}
    return DnnConfig.model_validate({**dnn, "stop": {"max_epochs": 1}})


NETWORKS = {
    "mixed": Network(0.96, sgd(0.05, "hpcbal.models:resnet", depth=8, width=8)),
    "parts": Network(0.93, sgd(0.1, "workloads.statistics:cnn")),
}


def load_digits() -> Samples:
    """1,797 scanned digits, a fifth of them for validation."""
    from hpcbal.data import digits

    source = digits()
    ids = np.random.default_rng(0).permutation(len(source))
    images, labels = zip(*(source.read(int(i)) for i in range(len(source))), strict=True)
    x = np.stack(images).astype(np.float32)
    num_validation = int(VALIDATION_SHARE * len(ids))
    y = np.array(labels, np.int64).reshape(-1)
    return Samples((x - x.mean()) / x.std(), y, ids[num_validation:], ids[:num_validation])


def balanced_shares(num_steps: int, seed: int) -> list[tuple[int, ...]]:
    """Shares of full steps as decided by `fitted`, starting with even ones."""
    scenario = four_kinds(NUM_WORKERS, num_steps, num_steps, NOISE)
    assert scenario.task.num_samples == BATCH_SIZE
    rng = np.random.default_rng((seed, 1))
    policy, shares = BATCHING["fitted"], []
    state = policy.start(scenario.task)
    for step in range(num_steps):
        shares.append(state.batch_sizes)
        curves = scenario.after if step // SHIFT_STEPS % 2 else scenario.before
        times_s = curves.seconds(state.batch_sizes) * (1 + NOISE * rng.standard_normal(NUM_WORKERS))
        seen = [Observation(n, s) for n, s in zip(state.batch_sizes, times_s.tolist(), strict=True)]
        state = policy.decide(state, seen).state
    return shares


def mixed_epoch(samples: Samples, seed: int, epoch: int, shares: Sequence[tuple[int, ...]]) -> Iterator[Step]:
    """Shuffled steps; the last one is smaller and is split in the same proportions."""
    order = np.random.default_rng((seed, 2, epoch)).permutation(samples.train)
    for number, start in enumerate(range(0, len(order), BATCH_SIZE)):
        ids = order[start : start + BATCH_SIZE]
        sizes = shares[number] if len(ids) == BATCH_SIZE else scale_shares(len(ids), shares[number])
        yield np.split(ids, np.cumsum(sizes)[:-1])


def parts_by_class(samples: Samples, shares: tuple[int, ...]) -> list[IntArray]:
    """The training samples in the order of their classes, cut in proportion to the shares."""
    by_class = samples.train[np.argsort(samples.y[samples.train], kind="stable")]
    cuts = np.cumsum(shares)[:-1] * len(by_class) // sum(shares)
    return np.split(by_class, cuts)


def parts_epoch(parts: Sequence[IntArray], seed: int, epoch: int) -> Iterator[Step]:
    """Every worker goes through its part once, spread evenly over the epoch's steps."""
    rng = np.random.default_rng((seed, 3, epoch))
    num_steps = -(-sum(map(len, parts)) // BATCH_SIZE)
    pieces = [np.array_split(rng.permutation(part), num_steps) for part in parts]
    for step in range(num_steps):
        yield [piece[step] for piece in pieces]


class Trainer:
    """One network, reset to the same first weights for each way that is compared."""

    def __init__(self, dnn: DnnConfig, samples: Samples, seed: int) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf

        from hpcbal.training.tensorflow_backend import TensorFlowBackend

        tf.config.experimental.enable_op_determinism()  # otherwise two runs differ by up to two epochs
        self._samples = samples
        num_classes = int(samples.y.max()) + 1
        spec = SampleSpec.of(samples.x.shape[1:], "float32")
        self._replica = TensorFlowBackend().build(dnn, spec, num_classes, seed)
        self._start = self._replica.state()

    def run(self, epochs: Sequence[Sequence[Step]], weighted: bool) -> Curve:
        """Train from the first weights; returns (epochs, validation accuracy), a few times per epoch."""
        self._replica.load_state(self._start)
        curve = []
        for number, steps in enumerate(epochs):
            due = np.linspace(0, len(steps), EVALUATIONS_PER_EPOCH + 1).astype(int)[1:]
            for index, step in enumerate(steps, 1):
                self._step(step, weighted)
                if index in due:
                    curve.append((number + index / len(steps), self._accuracy()))
        return curve

    def _step(self, step: Step, weighted: bool) -> None:
        """Eq. 7: the workers' sums over the samples of the step; Eq. 5: the mean of the workers' means."""
        workers = [ids for ids in step if len(ids)]
        total = sum(map(len, workers))
        parts = [
            self._replica.compute(self._batch(ids), total if weighted else len(ids)).tensors
            for ids in workers
        ]
        divisor = 1.0 if weighted else float(len(workers))
        self._replica.apply([sum(tensors) / divisor for tensors in zip(*parts, strict=True)])

    def _accuracy(self) -> float:
        sums = self._replica.evaluate(self._batch(self._samples.validation))
        return self._replica.metrics(sums)["accuracy"]

    def _batch(self, ids: IntArray) -> Batch:
        return Batch(ids, self._samples.x[ids], self._samples.y[ids])


def compare(kind: str, samples: Samples, seed: int, num_epochs: int) -> dict[str, Curve]:
    """The curves of all ways, from the same first weights and with the same samples."""
    trainer = Trainer(NETWORKS[kind].settings, samples, seed)
    num_steps = -(-len(samples.train) // BATCH_SIZE)
    shares = balanced_shares(num_epochs * num_steps, seed)
    if kind == "parts":
        parts = parts_by_class(samples, shares[:SHIFT_STEPS][-1])
        uneven = [list(parts_epoch(parts, seed, epoch)) for epoch in range(num_epochs)]
        return {"weighted": trainer.run(uneven, True), "unweighted": trainer.run(uneven, False)}
    even = [split_evenly(BATCH_SIZE, NUM_WORKERS)] * len(shares)

    def epochs(of: Sequence[tuple[int, ...]]) -> list[list[Step]]:
        return [
            list(mixed_epoch(samples, seed, epoch, of[epoch * num_steps :])) for epoch in range(num_epochs)
        ]

    return {
        "even": trainer.run(epochs(even), True),
        "weighted": trainer.run(epochs(shares), True),
        "unweighted": trainer.run(epochs(shares), False),
    }


def epochs_to(target: float, curve: Curve) -> float | None:
    """Epochs until the target was first reached; None: never."""
    return next((epochs for epochs, accuracy in curve if accuracy >= target), None)


def last_accuracy(curve: Curve) -> float:
    """Mean over the last epoch."""
    return float(np.mean([accuracy for _, accuracy in curve[-EVALUATIONS_PER_EPOCH:]]))


@dataclass(frozen=True)
class Outcome:
    """One way of training, over the seeds."""

    epochs: tuple[float | None, ...]
    accuracy: tuple[float, ...]
    num_epochs: int

    def counted(self) -> npt.NDArray[np.float64]:
        """Epochs to the target; all epochs if it was not reached."""
        return np.array([self.num_epochs if epochs is None else epochs for epochs in self.epochs], np.float64)

    def show(self, kind: str, name: str) -> str:
        """A row of the table."""
        reached = " ".join("     -" if epochs is None else f"{epochs:6.2f}" for epochs in self.epochs)
        return f"{kind:>6}  {name:<10}  {reached}   {' '.join(f'{a:.3f}' for a in self.accuracy)}"


def figures(mixed: dict[str, Outcome], parts: dict[str, Outcome]) -> dict[str, float]:
    """The JSON's figures."""
    result: dict[str, float] = {}
    ratios = mixed["weighted"].counted() / mixed["even"].counted()
    result["epochs_balanced_over_even"] = mixed["weighted"].counted().mean() / mixed["even"].counted().mean()
    result["epochs_noise"] = float(ratios.std(ddof=1)) if len(ratios) > 1 else 0.0
    for suffix, of in (("", parts), ("_mixed", mixed)):
        ours, theirs = of["weighted"], of["unweighted"]
        result[f"unweighted_over_weighted{suffix}"] = theirs.counted().mean() / ours.counted().mean()
        result[f"unweighted_reached{suffix}"] = sum(epochs is not None for epochs in theirs.epochs)
        result[f"unweighted_accuracy_lost{suffix}"] = float(np.mean(ours.accuracy) - np.mean(theirs.accuracy))
    return {key: round(float(value), 4) for key, value in result.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    samples = load_digits()
    outcomes: dict[str, dict[str, Outcome]] = {}
    for kind, network in NETWORKS.items():
        what = f"epochs to a validation accuracy of {network.target}, and that in the last epoch"
        print(f"{kind}: {what}, by seed", flush=True)
        runs = [compare(kind, samples, seed, args.epochs) for seed in range(args.seeds)]
        outcomes[kind] = {
            name: Outcome(
                tuple(epochs_to(network.target, run[name]) for run in runs),
                tuple(last_accuracy(run[name]) for run in runs),
                args.epochs,
            )
            for name in runs[0]
        }
        for name, outcome in outcomes[kind].items():
            print(outcome.show(kind, name), flush=True)
    results = figures(outcomes["mixed"], outcomes["parts"])
    for key, value in results.items():
        print(f"{key} {value:g}")
    if args.json:
        facts = {"num_seeds": args.seeds, "num_epochs": args.epochs}
        args.json.write_text(json.dumps(results | facts | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
