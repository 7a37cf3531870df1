"""Give this process its GPU or its cores, before TensorFlow starts to use them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from hpcbal.training.devices import check_gpus_seen, gpu_of_slot, thread_counts, threads_of_slot


def setup_tensorflow(
    local_slot: int,
    num_local_slots: int,
    cores_of_slots: Sequence[frozenset[int]] | None = None,
    *,
    wanted: str = "auto",
    granted: str | None = None,
) -> str:
    """Give this process its GPU, or its share of the cores; call before any other use of TensorFlow.

    Args:
        local_slot: index of this trainer on its node, from 0.
        num_local_slots: trainers on the node.
        cores_of_slots: affinity masks of the node's trainers, if the caller has gathered them.
        wanted: `slots.device`.
        granted: how the batch system gave GPUs, from `granted_gpus`.

    Returns:
        The device, for people and for the key of measured rates.

    Raises:
        ClusterError: if the node has more trainers than GPUs, or TensorFlow misses GPUs that were given.
    """
    share = threads_of_slot(frozenset(os.sched_getaffinity(0)), num_local_slots, cores_of_slots)
    intra, inter = thread_counts(os.environ, share)
    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)
    if wanted == "cpu":
        tf.config.set_visible_devices([], "GPU")
    gpus = [] if wanted == "cpu" else tf.config.list_physical_devices("GPU")
    index = gpu_of_slot(len(gpus), local_slot)
    if index is None:
        check_gpus_seen("TensorFlow", wanted, granted, built_with_gpus=tf.test.is_built_with_gpu_support())
        return f"cpu, {intra} thread{'s' if intra > 1 else ''}"
    tf.config.set_visible_devices(gpus[index], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)
    return str(tf.config.experimental.get_device_details(gpus[index]).get("device_name", "gpu"))
