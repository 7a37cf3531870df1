"""The batch sampler that balances the steps of a data-parallel training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcbal.errors import SamplerError
from hpcbal.samplers.checks import check_batches, flag, place, whole
from hpcbal.samplers.shares import Dealer, FloatArray, SampleCost, Share, checked_speeds
from hpcbal.samplers.speeds import MeasuredSpeeds, Ranks

if TYPE_CHECKING:
    from hpcbal.samplers.torch_side import Agreement, BalancedLoader, Stopwatch
import sys

_MOST_FRAMES = 8
_ADVICE = (
    "use sampler.loader(dataset) as it is, without accelerator.prepare, or set num_processes = 1 and "
    "process_index = 0 of the prepared loader's batch_sampler"
)


def refuse_resharding() -> None:
    """Look at who called the caller for an object that hands each rank only a part of the steps.

    Raises: SamplerError: accelerate's BatchSamplerShard, for more than one process, or its
        DataLoaderDispatcher.
    """
    frame = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        reader = frame.f_locals.get("self")
        kinds = {kind.__name__ for kind in type(reader).__mro__}
        if "BatchSamplerShard" in kinds and getattr(reader, "num_processes", 1) > 1:
            raise SamplerError(
                "accelerate shares the sampler's steps out once more (BatchSamplerShard), and most samples "
                f"would be lost; {_ADVICE}"
            )
        if "DataLoaderDispatcher" in kinds:
            raise SamplerError(
                "accelerate reads all batches on one rank (dispatch_batches), so shares would be mixed up; "
                "use dispatch_batches=False and sampler.loader(dataset) without accelerator.prepare"
            )
        if frame.f_back is None:
            return
        frame = frame.f_back


STATE_VERSION = 1
MOST_SEED = 2**63 - 1
"""PyTorch's generators take 64 bits, and the number of the epoch is added to the seed."""


class BalancedBatchSampler:
    """Deals each global batch of a random order to the ranks so that all of them finish together.

    The global batches are those of `BatchSampler(RandomSampler(dataset, generator=g), batch_size, drop_last)`
    with `g` seeded by seed + epoch, whatever the number of ranks, so each sample occurs once per epoch. Ranks
    get unequal numbers of samples; `scale` makes the average of their gradients that of the global batch. All
    ranks make the same decisions from the same arguments, without messages, except for measured speeds.

    No rank is without a sample: a step needs one for each.

    Args:
        sizes: one number above 0 per sample, such as its tokens: a list, an array, or a tensor of the CPU.
            All ranks must give the same, as for all arguments but `rank`. With those of torch.distributed
            this is checked, without waiting for another rank.
        batch_size: samples of a step, of all ranks together, >= the number of ranks.
        num_replicas, rank: number of ranks, and this one's; None: those of torch.distributed, or one rank
            where nothing was started.
        cost: the work of a rank: "padded", its number of samples times their largest size; "sum", the sum of
            their sizes; or a function that takes sizes as an array and returns for each the work of one
            sample padded to it, such as `lambda n: n + 0.001 * n**2`.
        shuffle: False: samples come in the order of their indices in each epoch.
        seed: 0 to 2**63 - 1.
        drop_last: leave out a last step that is not full. Otherwise it needs a sample for each rank too.
        speeds: of the ranks, in any unit; None: all are equal; "measured": learnt from `record` or `watch`.
        policy: for measured speeds, the name of a policy of hpcbal.policies.batching that decides.
        exchange_every: steps after which measurements are exchanged, >= 1.
        max_per_rank: most samples of one rank in a step; None: no limit.
        max_cost_per_rank: most work of one rank in a step, in the unit of `cost`; None: no limit.
        group: process group of torch.distributed; None: all ranks.

    Attributes:
        global_batch_size, num_samples, num_replicas, rank, seed, shuffle, drop_last: as given.

    Raises: SamplerError: an argument is wrong, or differs from that of another rank; it is a ValueError.
    """

    def __init__(
        self,
        sizes: npt.ArrayLike,
        batch_size: int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        cost: str | SampleCost = "padded",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        speeds: Sequence[float] | str | None = None,
        policy: str = "fitted",
        exchange_every: int = 10,
        max_per_rank: int | None = None,
        max_cost_per_rank: float | None = None,
        group: Any = None,
    ) -> None:
        self._group = group
        self.num_replicas, self.rank = place(num_replicas, rank, group)
        self.global_batch_size = whole("batch_size", batch_size, 1)
        self.seed = whole("seed", seed, 0)
        if self.seed > MOST_SEED:
            raise SamplerError(f"seed: got {seed}, allowed: 0 to {MOST_SEED}")
        self.shuffle, self.drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self._exchange_every = whole("exchange_every", exchange_every, 1)
        if max_per_rank is not None:
            max_per_rank = whole("max_per_rank", max_per_rank, 1)
        self._dealer = Dealer(sizes, cost, max_per_rank, max_cost_per_rank)
        self.num_samples = len(self._dealer.sizes)
        check_batches(
            self.num_samples, self.global_batch_size, self.num_replicas, max_per_rank, self.drop_last
        )
        is_measured = isinstance(speeds, str) and speeds == "measured"
        self._weights = checked_speeds(None if is_measured else speeds, self.num_replicas)  # type: ignore[arg-type]
        self._measured: MeasuredSpeeds | None = None
        if is_measured:
            self._measured = MeasuredSpeeds(policy, self.global_batch_size, self._weights, max_per_rank)
        self._ranks: Ranks | None = None
        self._watch: Stopwatch | None = None
        self._epoch = self._first_step = 0
        self._drawn: deque[Share] = deque()
        self._current: Share | None = None
        self._is_told = False
        """Whether `begin_step` says which step begins."""
        self._has_begun = False
        self._agreement: Agreement | None = None
        if num_replicas is None and self.num_replicas > 1:
            self._agreement = self._agree(policy if is_measured else None, max_per_rank, max_cost_per_rank)

    # ---- what a loader needs -----------------------------------------------------------------

    def __len__(self) -> int:
        """Steps of an epoch, also while one that was resumed has fewer left."""
        full, rest = divmod(self.num_samples, self.global_batch_size)
        return full + int(rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's indices of each step that is left of the epoch.

        A pass that is left early begins again where it began. One that ends begins the next epoch.

        Raises: SamplerError: `accelerate` shares the steps out once more, or a step does not fit into the
            limits.
        """
        refuse_resharding()
        self._forget()
        return self._steps(self._epoch, self._first_step)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next pass; where a loaded state is in this epoch, go on from there."""
        epoch = whole("epoch", epoch, 0)
        if epoch != self._epoch:
            self._forget()
            self._epoch, self._first_step = epoch, 0

    def loader(self, dataset: Any, **settings: Any) -> BalancedLoader:
        """Return a `DataLoader` over a dataset with this sampler, which calls `begin_step` for each batch.

        Args:
            dataset: of map style, with as many samples as there are sizes.
            settings: of `DataLoader`, without those that a batch sampler decides.

        Raises: SamplerError: the dataset or a setting does not fit.
        """
        from hpcbal.samplers.torch_side import BalancedLoader

        return BalancedLoader(self, dataset, **settings)

    def agree_on_loader(self, num_workers: int, prefetch_factor: int | None) -> None:
        """Refuse a loader that reads ahead by another number of steps than another rank's.

        Ranks that measure speeds exchange them as they draw a step, so they would wait for each other.
        """
        if self._agreement is not None and self._measured is not None:
            self._agreement.check(
                "loader",
                {"num_workers": num_workers, "prefetch_factor": prefetch_factor},
                "give the loaders of all ranks the same",
            )

    # ---- the step that trains now ------------------------------------------------------------

    def tell_steps(self) -> None:
        """Say that `begin_step` will be called for each batch; `loader` does it itself."""
        self._is_told = True

    def begin_step(self) -> None:
        """Say that training begins on the next batch; for loaders that read ahead. `loader` does it itself.

        Raises: SamplerError: no batch was drawn.
        """
        self.tell_steps()
        self._begin()

    @property
    def share(self) -> Share:
        """This rank's part of the step that trains now.

        Raises: SamplerError: no step has begun, or it is unknown which one, see `begin_step`.
        """
        self._settle()
        if self._current is None:
            raise SamplerError("no step has begun: draw a batch first, from sampler.loader(dataset)")
        return self._current

    @property
    def loss_scale(self) -> float:
        """The factor of this rank's mean loss in this step, see `scale`."""
        share = self.share
        return share.num_samples * self.num_replicas / share.num_global

    def scale(self, loss: Any, by: str = "samples") -> Any:
        """Return the loss times the factor with which the average over ranks is exact.

        `DistributedDataParallel` averages the gradients of all ranks. The factor is this rank's part of the
        step times the number of ranks, so the average is the gradient of the mean over the global batch.

        Args:
            loss: a tensor or a number: the mean over this rank's samples (or over the units of `sizes`).
            by: "samples": each sample counts the same; "sizes": each unit of `sizes` does, where the loss is
                a mean over tokens and `sizes` are their numbers.

        Raises: SamplerError: `by` is neither; and as `share`.
        """
        share = self.share
        if by == "samples":
            return loss * self.loss_scale
        if by == "sizes":
            return loss * (share.size * self.num_replicas / share.size_global)
        raise SamplerError(f"scale: by: got {by!r}, allowed: 'samples' or 'sizes'")

    # ---- speeds ------------------------------------------------------------------------------

    @property
    def speeds(self) -> tuple[float, ...]:
        """The part of a step's work that each rank gets now; the sum is 1."""
        weights = self._weights_now()
        return tuple((weights / weights.sum()).tolist())

    def record(self, seconds: float) -> None:
        """Count the seconds that this rank's own part of the step that trains now took.

        Args:
            seconds: without waiting for other ranks; finite and > 0.

        Raises: SamplerError: they are out of range, or speeds are not measured.
        """
        self._measurer().add(self.share, seconds)

    def watch(self, module: Any) -> None:
        """Measure each step from its begin to the last gradient of a module, instead of calling `record`.

        Args:
            module: the `torch.nn.Module` that is trained, wrapped in DistributedDataParallel or not. Of
                another one it takes what is measured from now on.

        Raises: SamplerError: the module has no gradients, or layers in which ranks wait for each other; or
            speeds are not measured.
        """
        from hpcbal.samplers.torch_side import Stopwatch

        self._measurer()
        if self._watch is not None:
            self._watch.close()
        self._watch = Stopwatch(module, self.num_replicas > 1)

    # ---- resume ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the step that trains now, in plain values, the same on all ranks.

        Raises: SamplerError: it is unknown which step that is, see `begin_step`.
        """
        self._settle()
        epoch, step = self._epoch, self._first_step
        if self._current is not None:
            epoch, step = self._current.epoch, self._current.step + 1
        if step == len(self):
            epoch, step = epoch + 1, 0
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "step": step,
            "weights": None if self._measured is None else self._measured.weights.tolist(),
            **self._settings(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position: the next pass holds the steps that are left of its epoch.

        The number of ranks may be another one. Learnt speeds are kept if it is the same.

        Raises: SamplerError: the state is no such state, or of other samples, batches or seeds.
        """
        try:
            version, weights = state["version"], state["weights"]
            epoch, step = whole("epoch", state["epoch"], 0), whole("step", state["step"], 0)
            given = {name: state[name] for name in self._settings()}
        except (KeyError, TypeError) as error:
            raise SamplerError(
                f"state: got {type(state).__name__} without {error}, allowed: the result of state_dict"
            ) from error
        if version != STATE_VERSION:
            raise SamplerError(f"state: got version {version!r}, allowed: {STATE_VERSION}")
        for name, own in self._settings().items():
            if given[name] != own:
                raise SamplerError(
                    f"state: it was saved with {name}={given[name]!r}, but this sampler has {own!r}; make "
                    "the sampler with the same, or begin anew"
                )
        if step >= len(self):
            raise SamplerError(f"state: got step {step}, allowed: 0 to {len(self) - 1}")
        self._forget()
        self._epoch, self._first_step = epoch, step
        if self._measured is not None and weights is not None and np.size(weights) == self.num_replicas:
            self._measured.weights = checked_speeds(weights, self.num_replicas)

    # ---- inside ------------------------------------------------------------------------------

    def _agree(self, policy: str | None, max_per_rank: int | None, max_cost: float | None) -> Agreement:
        """Refuse arguments that differ from those of another rank."""
        from hpcbal.samplers.torch_side import Agreement

        agreement = Agreement(self._group)
        agreement.check(
            "arguments",
            {
                **self._settings(),
                "sizes": self._dealer.sizes.tobytes(),
                "cost": self._dealer.costs.tobytes() + self._dealer.kind.value.encode(),
                "speeds": self._weights.tobytes() + str(policy).encode(),
                "exchange_every": self._exchange_every,
                "max_per_rank": max_per_rank,
                "max_cost_per_rank": None if max_cost is None else float(max_cost),
            },
            "give all ranks the same arguments, and make their samplers in the same order",
        )
        return agreement

    def _agree_on_begin(self, first: Share) -> None:
        """Refuse a position at which another rank did not begin; once, as training has begun."""
        if self._agreement is not None and not self._has_begun:
            self._has_begun = True
            self._agreement.check(
                "begin",
                {"epoch": first.epoch, "step": first.step},
                "begin all ranks at the same step: call load_state_dict and set_epoch on each",
            )

    def _settings(self) -> dict[str, Any]:
        """The arguments on which the order of samples depends."""
        return {
            "num_samples": self.num_samples,
            "batch_size": self.global_batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    def _steps(self, epoch: int, first: int) -> Iterator[list[int]]:
        order, size = self._order(epoch), self.global_batch_size
        for step in range(first, len(self)):
            if self._measured is not None and step > first and step % self._exchange_every == 0:
                self._exchange(self._measured)
            samples = order[step * size : (step + 1) * size]
            indices, share = self._dealer.deal(epoch, step, samples, self._weights_now(), self.rank)
            self._drawn.append(share)
            if not self._is_told:  # it begins now, and some frameworks do not ask for more than the last one
                self._end_epoch_with(share)
            yield indices

    def _end_epoch_with(self, share: Share) -> None:
        """Let the next pass begin the next epoch if this step is the last one."""
        if share.step == len(self) - 1 and share.epoch == self._epoch:
            self._epoch, self._first_step = share.epoch + 1, 0

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(self.num_samples)
        from hpcbal.samplers.torch_side import random_order

        return random_order(self.num_samples, self.seed + epoch)

    def _weights_now(self) -> FloatArray:
        return self._weights if self._measured is None else self._measured.weights

    def _measurer(self) -> MeasuredSpeeds:
        if self._measured is None:
            raise SamplerError('speeds are not measured: make the sampler with speeds="measured"')
        return self._measured

    def _exchange(self, measured: MeasuredSpeeds) -> None:
        self._take_measurement()
        if self._ranks is None:
            from hpcbal.samplers.torch_side import TorchRanks, replicas

            if replicas(self._group) is None:
                if self.num_replicas == 1:
                    return
                raise SamplerError('speeds="measured" needs torch.distributed: call init_process_group first')
            self._ranks = TorchRanks(self._group)
        measured.exchange(self._ranks, self.rank == 0)

    def _take_measurement(self) -> None:
        """Count the step that ends, if it is watched."""
        if self._watch is not None and self._measured is not None and self._current is not None:
            seconds = self._watch.take()
            if seconds is not None:
                self._measured.add(self._current, seconds)

    def _begin(self) -> None:
        self._take_measurement()
        if not self._drawn:
            raise SamplerError("begin_step: no batch was drawn for it; call it once for each batch")
        before, self._current = self._current, self._drawn.popleft()
        if before is not None:  # a second step: nobody only looks at a batch
            self._agree_on_begin(before)
        self._end_epoch_with(self._current)
        if self._watch is not None:
            self._watch.begin()

    def _settle(self) -> None:
        """Take the only batch that was drawn as the one that trains now, unless `begin_step` says it."""
        if self._is_told or not self._drawn:
            return
        if len(self._drawn) > 1:
            raise SamplerError(
                f"it is unknown which of {len(self._drawn)} batches trains now, because some were drawn "
                "ahead; use sampler.loader(dataset), or call sampler.begin_step() at the begin of each step"
            )
        self._begin()

    def _forget(self) -> None:
        self._take_measurement()
        self._drawn.clear()
        self._current = None
