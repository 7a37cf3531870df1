"""Divide a node's GPUs and cores among its trainer ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

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


def gpu_of_slot(num_visible_gpus: int, local_slot: int) -> int | None:
    """Choose this process's GPU among the visible ones.

    Args:
        num_visible_gpus: GPUs that the library lists, >= 0.
        local_slot: index of this trainer on its node, from 0.

    Returns:
        Index of the GPU; None on a machine without GPUs. If a launcher shows each rank only one GPU, it is
        that one.

    Raises:
        ClusterError: if the node has more trainers than GPUs.
    """
    if num_visible_gpus <= 1:
        return 0 if num_visible_gpus else None
    if local_slot >= num_visible_gpus:
        raise ClusterError(
            f"there is no GPU for slot {local_slot} of this node: {num_visible_gpus} are visible; "
            f"set slots.per_node to at most {num_visible_gpus}"
        )
    return local_slot


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
            "check 'nvidia-smi' on the node (the driver, and whether the job may use its GPUs), and "
            f"{_SHOW_MORE[library]}"
        )
    else:
        why = "because it is a build without them"
        do = _GPU_BUILD[library]
    raise ClusterError(
        f"{given}, but {library} sees none, {why}; {do}; or set slots.device to cpu to train on the cores"
    )


def threads_of_slot(
    own_cores: frozenset[int], num_local_slots: int, cores_of_slots: Sequence[frozenset[int]] | None = None
) -> int:
    """Number of threads for a trainer such that the node's trainers do not slow each other down.

    Args:
        own_cores: affinity mask of this rank.
        num_local_slots: trainers on the node, >= 1.
        cores_of_slots: masks of all the node's trainers, including this one. If they are known, only trainers
            whose masks overlap with this one's share its cores: a launcher that binds ranks to cores has
            already divided them.

    Returns:
        At least 1.
    """
    num_sharing = num_local_slots
    if cores_of_slots is not None:
        num_sharing = max(1, sum(1 for cores in cores_of_slots if cores & own_cores))
    return max(1, len(own_cores) // num_sharing)


def thread_counts(environment: Mapping[str, str], share: int) -> tuple[int, int]:
    """Threads inside an operation, and parallel operations; the user's environment variables win.

    Args:
        environment: may contain TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS, OMP_NUM_THREADS.
        share: threads from `threads_of_slot`.
    """
    omp = _positive(environment.get("OMP_NUM_THREADS", "").split(",")[0])
    intra = _positive(environment.get("TF_NUM_INTRAOP_THREADS", "")) or omp or share
    inter = _positive(environment.get("TF_NUM_INTEROP_THREADS", "")) or omp or share
    return intra, inter


def _positive(text: str) -> int | None:
    return int(text) if text.strip().isdigit() and int(text) > 0 else None
