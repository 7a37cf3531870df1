"""The balanced sampler keeps what `RandomSampler` promises, whatever the sizes, ranks and speeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler

from hpcbal.samplers import BalancedBatchSampler, Share


@dataclass(frozen=True)
class Case:
    """Arguments of a sampler that has a sample for each rank in each step."""

    sizes: list[float]
    batch_size: int
    num_replicas: int
    speeds: list[float] | None
    cost: str
    seed: int
    shuffle: bool
    drop_last: bool

    def sampler(self, rank: int, num_replicas: int | None = None) -> BalancedBatchSampler:
        same = num_replicas in (None, self.num_replicas)
        return BalancedBatchSampler(
            self.sizes,
            self.batch_size,
            num_replicas=num_replicas or self.num_replicas,
            rank=rank,
            cost=self.cost,
            shuffle=self.shuffle,
            seed=self.seed,
            drop_last=self.drop_last,
            speeds=self.speeds if same else None,
        )

    def batches(self, epoch: int) -> list[list[int]]:
        """The global batches of PyTorch's own samplers."""
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        order = RandomSampler(self.sizes, generator=generator) if self.shuffle else range(len(self.sizes))
        return list(BatchSampler(order, self.batch_size, self.drop_last))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_replicas = draw(st.integers(1, 6))
    batch_size = draw(st.integers(num_replicas, 24))
    rest = draw(st.one_of(st.just(0), st.integers(min(num_replicas, batch_size - 1), batch_size - 1)))
    if rest < num_replicas:
        rest = 0
    num_samples = draw(st.integers(1, 4)) * batch_size + rest
    one = st.floats(0.5, 1e4) if draw(st.booleans()) else st.sampled_from([1.0, 7.0, 100.0])
    return Case(
        draw(st.lists(one, min_size=num_samples, max_size=num_samples)),
        batch_size,
        num_replicas,
        draw(
            st.none() | st.lists(st.floats(1e-9, 1e9), min_size=num_replicas, max_size=num_replicas),
        ),
        draw(st.sampled_from(["padded", "sum"])),
        draw(st.integers(0, 2**32)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@given(cases(), st.integers(0, 3))
@settings(deadline=None)
def test_the_ranks_share_out_the_global_batches_of_random_sampler(case: Case, epoch: int) -> None:
    samplers = [case.sampler(rank) for rank in range(case.num_replicas)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    steps = list(zip(*samplers, strict=True))
    batches = case.batches(epoch)
    assert len(steps) == len(batches) == len(samplers[0])
    for shares, batch in zip(steps, batches, strict=True):
        assert sorted(chain(*shares)) == sorted(batch)
        assert all(shares)
        for share in shares:  # the order within a batch is kept
            assert share == [index for index in batch if index in set(share)]


@given(cases(), st.data())
@settings(deadline=None)
def test_a_state_goes_on_with_the_next_step_on_any_number_of_ranks(case: Case, data: st.DataObject) -> None:
    sampler = case.sampler(0)
    batches = [*case.batches(0), *case.batches(1)]
    done = data.draw(st.integers(0, len(case.batches(0))))
    steps = iter(sampler)
    for _ in range(done):
        next(steps)
        sampler.begin_step()
    rest = len(case.sizes) % case.batch_size
    most = case.batch_size if case.drop_last or not rest else rest
    num_replicas = data.draw(st.integers(1, min(most, 6)))
    others = [case.sampler(rank, num_replicas) for rank in range(num_replicas)]
    for other in others:
        other.load_state_dict(sampler.state_dict())
    seen = [sorted(chain(*shares)) for _ in range(2) for shares in zip(*others, strict=True)]
    assert seen[: len(batches) - done] == [sorted(batch) for batch in batches[done:]]


@given(cases())
@settings(deadline=None)
def test_the_average_of_scaled_gradients_is_that_of_one_process(case: Case) -> None:
    torch.manual_seed(case.seed)
    inputs = torch.randn(len(case.sizes), 3, dtype=torch.float64)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()

    def gradient(samples: list[int], sampler: BalancedBatchSampler | None) -> torch.Tensor:
        model.zero_grad()
        loss = model(inputs[samples]).square().mean()
        (loss if sampler is None else sampler.scale(loss)).backward()
        return torch.cat([weight.grad.ravel() for weight in model.parameters()])

    samplers = [case.sampler(rank) for rank in range(case.num_replicas)]
    for shares, batch in zip(zip(*samplers, strict=True), case.batches(0), strict=True):
        each = [gradient(share, sampler) for share, sampler in zip(shares, samplers, strict=True)]
        torch.testing.assert_close(torch.stack(each).mean(0), gradient(batch, None), rtol=1e-10, atol=1e-10)


@given(cases())
@settings(deadline=None)
def test_shares_add_up_to_the_step(case: Case) -> None:
    samplers = [case.sampler(rank) for rank in range(case.num_replicas)]
    for indices, batch in zip(zip(*samplers, strict=True), case.batches(0), strict=True):
        shares: list[Share] = [sampler.share for sampler in samplers]
        assert [share.num_samples for share in shares] == [len(own) for own in indices]
        assert {share.num_global for share in shares} == {len(batch)}
        np.testing.assert_allclose(sum(share.size for share in shares), shares[0].size_global)
        np.testing.assert_allclose(np.mean([sampler.loss_scale for sampler in samplers]), 1.0)
