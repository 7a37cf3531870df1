"""Divide a node's GPUs and cores among its trainer ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.cluster.cgroup import Cores
from hpcbal.cluster.devices import MASKS, device_of
from hpcbal.errors import ClusterError

SEED_STATE = "seed_generator_state"
"""How Keras calls the state of a random layer: a seed, and a counter of draws."""

MAX_DRAWS_PER_STEP = 1024
"""A step advances that counter by this: more than any layer, even a recurrent one, draws in a step."""


def dnn_seed(seed: int, dnn_name: str, own: int | None = None) -> int:
    """A seed in 0..2**32-1 for the initial weights and random layers of `dnn_name`.

    Without a seed of its own, two DNNs of one run start differently even if their models are equal, and a DNN
    starts the same whatever else is in the ensemble. DNNs with the same `own` seed and model start equal,
    in any run.

    Args:
        seed: seed of the run.
        own: seed of the DNN, 0..2**32-1; None if it has none.
    """
    return zlib.crc32(f"{seed}/{dnn_name}".encode()) if own is None else own


CPU, EMULATED = "cpu", "emulated"
"""How the devices of backends begin that are no GPUs."""


def is_gpu(device: str) -> bool:
    """Return whether the device of a backend is a GPU."""
    return not device.startswith((CPU, EMULATED))


@dataclass(frozen=True, slots=True)
class LocalSlots:
    """The ranks of a node that compute, and the devices and cores of each.

    Attributes:
        mine: place of this rank among them, from 0.
        cores: the cores of each.
        wanted: `slots.device`.
        granted: how the batch system gave GPUs, from `granted_gpus`.
        seen: ids of the GPUs that each sees, from `visible_gpus`.
        host: name of the node, for messages.
        slots_per_gpu: slots that may share a GPU.
    """

    mine: int
    cores: tuple[Cores, ...]
    wanted: str = "auto"
    granted: str | None = None
    seen: tuple[tuple[str, ...], ...] = ()
    host: str = "this node"
    slots_per_gpu: int = 1

    @classmethod
    def alone(cls, wanted: str = "auto", granted: str | None = None) -> LocalSlots:
        """This process alone, on all that it may use."""
        return cls(0, (Cores.of_this_process(),), wanted, granted)

    def threads(self) -> int:
        """Number of threads for this rank such that the node's ranks do not slow each other down, >= 1.

        Only ranks whose masks overlap share cores: a launcher that binds ranks has divided them already. A
        quota is shared by the ranks of its control group.
        """
        own = self.cores[self.mine]
        share = len(own.mask) // max(1, sum(1 for cores in self.cores if cores.mask & own.mask))
        if own.quota is not None:
            group = own.quota.group
            sharing = sum(1 for cores in self.cores if cores.quota is not None and cores.quota.group == group)
            share = min(share, int(own.quota.cores) // max(1, sharing))
        return max(1, share)

    def gpu(self, library: str, num_seen: int) -> int | None:
        """Return the number of this rank's GPU among those that a library lists; None if it lists none.

        Args:
            library: `TensorFlow` or `PyTorch`, for messages.
            num_seen: GPUs that the library lists, >= 0.

        Raises:
            ClusterError: if more than `slots_per_gpu` slots of the node would use one GPU, or the library
                lists fewer than the masks show.
        """
        if not num_seen:
            return None
        listed = tuple(str(number) for number in range(num_seen))  # where no mask or driver tells them apart
        index = device_of(self.seen, self.mine, self.host, self.slots_per_gpu)
        if index is None:
            index = device_of((listed,) * len(self.cores), self.mine, self.host, self.slots_per_gpu)
        if index is not None and index >= num_seen:
            raise ClusterError(
                f"{self.host}: slot {self.mine} is to use GPU {index} of those that it sees "
                f"({', '.join(self.seen[self.mine])}), but {library} lists only {num_seen}; check the masks "
                f"({', '.join(MASKS)}) and 'hpcbal doctor'"
            )
        return index


_GPU_BUILD = {
    "TensorFlow": "set up again with HPCBAL_DEVICE=gpu scripts/setup.sh, or install 'tensorflow[and-cuda]'",
    "PyTorch": "install the build of PyTorch for these GPUs (https://pytorch.org/get-started/locally)",
}
_SHOW_MORE = {
    "TensorFlow": "start with TF_CPP_MIN_LOG_LEVEL=0 to see which library is missing",
    "PyTorch": "run python -m torch.utils.collect_env there",
}


def check_gpus_seen(library: str, device: str, granted: str | None, *, built_with_gpus: bool) -> None:
    """Refuse to train on cores by accident; for a process in which a library sees no GPU.

    Args:
        library: `TensorFlow` or `PyTorch`.
        device: `slots.device`: `auto`, `gpu` or `cpu`.
        granted: how the batch system gave GPUs, such as `SLURM_JOB_GPUS=0,1`; None: it gave none.
        built_with_gpus: whether this build of it can use GPUs at all.

    Raises:
        ClusterError: if GPUs were given, or are configured, unless `device` is `cpu`.
    """
    if device == "cpu" or (device == "auto" and granted is None):
        return
    given = f"this job was given GPUs ({granted})" if granted is not None else "slots.device is gpu"
    if built_with_gpus:
        why = "although it is a build for GPUs"
        do = (
            "check 'nvidia-smi' or 'rocm-smi' on the node (the driver, and the job's access to its GPUs), "
            f"and {_SHOW_MORE[library]}"
        )
    else:
        why = "because it is a build without them"
        do = _GPU_BUILD[library]
    raise ClusterError(
        f"{given}, but {library} sees none, {why}; {do}; or set slots.device to cpu to train on the cores"
    )


def thread_counts(environment: Mapping[str, str], share: int) -> tuple[int, int]:
    """Threads inside an operation, and parallel operations; the user's environment variables win.

    Args:
        environment: may contain TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS, OMP_NUM_THREADS.
        share: threads from `LocalSlots.threads`.
    """
    omp = positive(environment.get("OMP_NUM_THREADS", "").split(",")[0])
    intra = positive(environment.get("TF_NUM_INTRAOP_THREADS", "")) or omp or share
    inter = positive(environment.get("TF_NUM_INTEROP_THREADS", "")) or omp or share
    return intra, inter


def positive(text: str) -> int | None:
    """Return the number of threads that a variable asks for; None if it is no whole number above 0."""
    return int(text) if text.strip().isdigit() and int(text) > 0 else None
