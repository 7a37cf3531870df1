"""The parts of a sampler that need PyTorch: the random order, the loader, messages and clocks."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcbal.errors import SamplerError

try:
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, IterableDataset
except ImportError as error:
    raise SamplerError(
        f"samplers need PyTorch, but it cannot be imported here ({error}); install it with pip install "
        "'hpcbal[torch]'"
    ) from error

if TYPE_CHECKING:
    from hpcbal.samplers.sampler import BalancedBatchSampler


def random_order(num_samples: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the order of `RandomSampler` with a generator of this seed, shape (num_samples,)."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(num_samples, generator=generator, device="cpu").numpy()


def replicas(group: Any) -> tuple[int, int] | None:
    """Return the number of ranks and this rank; None: torch.distributed is not initialised."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.get_world_size(group), dist.get_rank(group)


_STORELESS = {"mpi", "fake"}
"""Backends whose process groups have no store that can be read."""

_num_made: Counter[str] = Counter()
"""Samplers that this process has made, by process group."""


class Agreement:
    """Refuses a sampler that is another one than that of the other ranks, by the store of torch.distributed.

    The first rank that comes leaves what it has, and all others compare: nobody waits for another rank. The
    n-th sampler of a process group is compared with the n-th ones of its other ranks.

    Args:
        group: process group; None: all ranks.
    """

    def __init__(self, group: Any = None) -> None:
        members = str(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))
        _num_made[members] += 1
        place = hashlib.sha256(members.encode()).hexdigest()
        self._name = f"hpcbal.samplers/{place}/{_num_made[members]}"
        self._is_possible = dist.get_backend() not in _STORELESS
        self._num_checks: Counter[str] = Counter()

    def check(self, name: str, own: Mapping[str, Any], advice: str) -> None:
        """Compare values with those of the rank that came first to its n-th check of this name.

        Args:
            name: of the check.
            own: plain values by name; arrays as bytes.
            advice: the end of the sentence.

        Raises: SamplerError: they differ; it names the first one that does.
        """
        if not self._is_possible:
            return
        self._num_checks[name] += 1
        plain = {key: _digest(value) if isinstance(value, bytes) else value for key, value in own.items()}
        text = json.dumps(plain)
        store = dist.distributed_c10d._get_default_store()
        try:
            found = json.loads(store.compare_set(f"{self._name}/{name}/{self._num_checks[name]}", "", text))
        except RuntimeError as error:
            if "Not implemented" not in str(error):
                raise
            self._is_possible = False  # a store in Python, which has what its process group needs
            return
        for key, value in json.loads(text).items():
            if found[key] != value:
                is_long = isinstance(own[key], bytes)
                what = "got other values than" if is_long else f"got {value!r}, but {found[key]!r} on"
                raise SamplerError(f"{key}: {what} another rank; {advice}")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class TorchRanks:
    """Numbers between ranks by torch.distributed; on GPUs if the group has no backend for the host's memory.

    Args:
        group: process group; None: all ranks.
    """

    def __init__(self, group: Any = None) -> None:
        backend = str(dist.get_backend(group))
        on_host = "gloo" in backend or "mpi" in backend
        self._group = group
        self._device = torch.device("cpu" if on_host else torch.cuda.current_device())

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """See `Ranks.gather`."""
        own = torch.tensor(list(row), dtype=torch.float64, device=self._device)
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, own, group=self._group)
        return [each.tolist() for each in rows]

    def tell(self, row: Sequence[float]) -> list[float]:
        """See `Ranks.tell`."""
        numbers = torch.tensor(list(row), dtype=torch.float64, device=self._device)
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        dist.broadcast(numbers, first, group=self._group)
        return numbers.tolist()


class BalancedLoader(DataLoader):
    """A `DataLoader` that tells its sampler which step begins, however far its workers read ahead.

    Raises: SamplerError: the dataset does not fit the sampler, or an argument is the sampler's business.
    """

    def __init__(self, sampler: BalancedBatchSampler, dataset: Any, **settings: Any) -> None:
        own = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"} & set(settings)
        if own:
            raise SamplerError(
                f"loader: got {', '.join(sorted(own))}; the sampler decides that, leave it out"
            )
        if settings.get("in_order") is False:
            raise SamplerError("loader: got in_order=False, allowed: True, because batches belong to steps")
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise SamplerError(f"dataset: got {_a(dataset)}, allowed: a dataset with indices")
        if hasattr(dataset, "iloc"):
            raise SamplerError(
                f"dataset: got {_a(dataset)}, whose indices are labels or columns, allowed: a dataset whose "
                "items have places, such as TensorDataset(torch.from_numpy(frame.to_numpy()))"
            )
        if hasattr(dataset, "__len__") and len(dataset) != sampler.num_samples:
            raise SamplerError(
                f"dataset: got {len(dataset)} samples, but the sampler has sizes of {sampler.num_samples}"
            )
        super().__init__(dataset, batch_sampler=sampler, **settings)
        self._balanced = sampler
        sampler.agree_on_loader(self.num_workers, self.prefetch_factor)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._balanced.tell_steps()
        for batch in super().__iter__():
            self._balanced.begin_step()
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """See `BalancedBatchSampler.set_epoch`; frameworks call this one."""
        self._balanced.set_epoch(epoch)


def _a(value: Any) -> str:
    """Words for an object that was given."""
    if isinstance(value, type):
        return f"the class {value.__name__}, not an object of it"
    return "an IterableDataset" if isinstance(value, IterableDataset) else f"a {type(value).__name__}"


class Stopwatch:
    """Times this rank's own part of a step: from its begin to the last gradient of the module.

    The gradients' all-reduce runs beside the backward pass, so up to then a rank has waited for no other.

    Args:
        module: the module that is trained, wrapped or not.
        has_others: whether there are other ranks.

    Raises: SamplerError: no parameter needs a gradient; or layers wait for other ranks.
    """

    def __init__(self, module: torch.nn.Module, has_others: bool = False) -> None:
        if not isinstance(module, torch.nn.Module):
            raise SamplerError(f"watch: got {_a(module)}, allowed: the torch.nn.Module that is trained")
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained:
            raise SamplerError("watch: got a module without a parameter that is trained")
        if has_others and any(isinstance(each, torch.nn.SyncBatchNorm) for each in module.modules()):
            raise SamplerError(
                "watch: got a module with SyncBatchNorm, in which each rank waits for the slowest, so all "
                "would seem equally fast; give the speeds, or use another normalisation"
            )
        self._clock = _CudaClock() if trained[0].is_cuda else _HostClock()
        self._is_running = self._has_ended = False
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._mark) for parameter in trained]

    def close(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Begin to time a step."""
        self._is_running, self._has_ended = True, False
        self._clock.begin()

    def take(self) -> float | None:
        """Return the seconds of the step that was begun last; None: it has no gradient, or was taken."""
        has_ended, self._has_ended = self._has_ended, False
        self._is_running = False
        return self._clock.seconds() if has_ended else None

    def _mark(self, parameter: torch.Tensor) -> None:
        if self._is_running:
            self._has_ended = True
            self._clock.end()


class _HostClock:
    def begin(self) -> None:
        self._began = self._ended = time.perf_counter()

    def end(self) -> None:
        self._ended = time.perf_counter()

    def seconds(self) -> float:
        return max(self._ended - self._began, 1e-9)


class _CudaClock:
    """A GPU works later than its kernels are launched, so its own stream keeps the time."""

    def __init__(self) -> None:
        self._began = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(enable_timing=True)

    def begin(self) -> None:
        self._began.record()

    def end(self) -> None:
        self._ended.record()

    def seconds(self) -> float:
        self._ended.synchronize()
        return max(self._began.elapsed_time(self._ended) / 1e3, 1e-9)
