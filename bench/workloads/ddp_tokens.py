"""One rank of a real DistributedDataParallel run on sentences of unequal length, for `bench_sampler.py`.

    python -m workloads.ddp_tokens SAMPLER RANK STORE

SAMPLER is `ours` or `hf`; RANK 0 or 1; STORE a file in which the two ranks find each other (gloo). A rank
stays on core RANK of those that it may use. It prints one line of JSON: seconds of all steps, and the seconds
and the padded tokens of its own parts of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcbal.samplers import BalancedBatchSampler
from hpcbal.samplers.torch_side import Stopwatch

NUM_RANKS, PER_RANK, NUM_STEPS = 2, 32, 100
WIDTH, NUM_WORDS, NUM_CLASSES = 64, 1000, 10


def lognormal_lengths(num_samples: int, seed: int = 0) -> np.ndarray:
    """Lengths of sentences: lognormal with mu 5 and sigma 1, cut to 16..1,024."""
    random = np.random.Generator(np.random.PCG64(seed))
    return np.clip(random.lognormal(5.0, 1.0, num_samples), 16, 1024).astype(np.int64)


class Sentences(torch.nn.Module):
    """The mean of what a small network makes of each word; time is in proportion to the padded words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(NUM_WORDS, WIDTH)
        self.inside = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(4 * WIDTH, WIDTH)
        )
        self.out = torch.nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(words.shape[1]) < lengths[:, None]
        inside = self.inside(self.words(words)) * mask[:, :, None]
        return self.out(inside.sum(1) / lengths[:, None])


def peer_steps(lengths: np.ndarray, rank: int) -> Iterator[list[int]]:
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    class Padded(BatchRebalanceSampler):
        QUADRATIC_COST_COEF = 0.0  # the cost of this network

    size = NUM_RANKS * PER_RANK
    return iter(Padded(lengths.tolist(), size, NUM_RANKS, 1, seed=0, rank=rank))


def main(name: str, rank: int, store: str) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=NUM_RANKS)
    lengths = lognormal_lengths(NUM_STEPS * NUM_RANKS * PER_RANK)
    words = torch.randint(NUM_WORDS, (PER_RANK * NUM_RANKS, 1024))
    module = DistributedDataParallel(Sentences())
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    sampler = BalancedBatchSampler(lengths, NUM_RANKS * PER_RANK, seed=0, speeds="measured", exchange_every=5)
    is_ours = name == "ours"
    if is_ours:
        sampler.watch(module)
    own = Stopwatch(module)
    own_s = tokens = 0.0
    dist.barrier()
    began = time.perf_counter()
    for indices in sampler if is_ours else peer_steps(lengths, rank):
        if is_ours:
            sampler.begin_step()
        own.begin()
        sizes = torch.from_numpy(lengths[indices])
        longest = int(sizes.max())
        output = module(words[: len(indices), :longest], sizes)
        loss = torch.nn.functional.cross_entropy(output, sizes % NUM_CLASSES)
        (sampler.scale(loss) if is_ours else loss).backward()
        own_s += own.take() or 0.0
        tokens += len(indices) * longest
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - began
    dist.destroy_process_group()
    print(json.dumps({"seconds": seconds, "own_s": own_s, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
