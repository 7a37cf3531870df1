"""Give this process its GPU or its cores, before TensorFlow starts to use them."""

from __future__ import annotations

import os

import tensorflow as tf

from hpcbal.training.devices import LocalSlots, check_gpus_seen, thread_counts


def setup_tensorflow(slots: LocalSlots) -> str:
    """Give this process its GPU, or its share of the cores; call before any other use of TensorFlow.

    Args:
        slots: the trainers of the node.

    Returns:
        The device, for people and for the key of measured rates.

    Raises:
        ClusterError: if two trainers would use one GPU, or TensorFlow misses GPUs that were given.
    """
    intra, inter = thread_counts(os.environ, slots.threads())
    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)
    if slots.wanted == "cpu":
        tf.config.set_visible_devices([], "GPU")
    gpus = [] if slots.wanted == "cpu" else tf.config.list_physical_devices("GPU")
    index = slots.gpu("TensorFlow", len(gpus))
    if index is None:
        is_for_gpus = tf.test.is_built_with_gpu_support()
        check_gpus_seen("TensorFlow", slots.wanted, slots.granted, built_with_gpus=is_for_gpus)
        return f"cpu, {intra} thread{'s' if intra > 1 else ''}"
    tf.config.set_visible_devices(gpus[index], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)
    return str(tf.config.experimental.get_device_details(gpus[index]).get("device_name", "gpu"))
