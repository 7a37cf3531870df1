"""Give this process its GPU or its cores, and build Keras 3 models for training with TensorFlow."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence

import keras
import tensorflow as tf

from hpcbal.config.imports import load_object
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.arrays import Affine
from hpcbal.data.spec import CLASS_LABEL, LabelSpec, SampleSpec
from hpcbal.training.backend import Backend
from hpcbal.training.devices import LocalSlots, check_gpus_seen, dnn_seed, thread_counts
from hpcbal.training.keras.model import IGNORES_MASK, checked, users_own
from hpcbal.training.keras.predicting import DeviceInput
from hpcbal.training.keras.tensorflow_replica import TensorFlowReplica
from hpcbal.training.keras.traced_step import (
    LossScale,
    memory_errors,
)
from hpcbal.training.keras.trainable import freeze_layers, make_optimizer
from hpcbal.training.outputs import model_arguments
from hpcbal.training.user_model import (
    check_synchronised,
    exclusions_in_vain,
    hint_at_shapes,
    make_model,
    user_errors,
)
from hpcbal.training.weights import Array

log = logging.getLogger(__name__)
# TensorFlow warns of retracing if one method is traced for several replicas, as is needed here.
logging.getLogger("tensorflow").setLevel(logging.ERROR)
# Keras repeats this at every trace; the check of the model has found it, see `Replica.warnings`.
warnings.filterwarnings("ignore", IGNORES_MASK.pattern, UserWarning)


class TensorFlowBackend(Backend):
    """Builds Keras models; see `hpcbal.training.backend.Backend`.

    Args:
        device: what `setup_tensorflow` returned.
        precision: "float32" or "float64" for weights and arithmetic in the whole process; "mixed_float16" or
            "mixed_bfloat16" for arithmetic of that type on weights of float32.
    """

    name = "tensorflow"

    def __init__(self, device: str = "cpu", precision: str = "float32") -> None:
        self.device = device
        self._precision = precision

    def build(
        self,
        dnn: DnnConfig,
        sample: SampleSpec,
        num_classes: int,
        seed: int,
        on_device: Sequence[Affine] = (),
        label: LabelSpec = CLASS_LABEL,
        sample_weights: Array | None = None,
    ) -> TensorFlowReplica:
        """Build a replica of a Keras model. Clears the session, so layers get the same names every time.

        Raises:
            InputError: if the optimizer is unknown, the model does not fit, the loss or a metric does not
                fit the labels, or the model has synchronised layers and MPI does not support them.
        """
        with user_errors(dnn, "importing it"):
            load_object(dnn.model)  # first, as a user's module may change Keras' settings
        keras.utils.clear_session(free_memory=False)
        keras.config.disable_traceback_filtering()  # or messages of a user's errors get arguments appended
        floatx = self._precision if self._precision in ("float32", "float64") else "float32"
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(self._precision)
        keras.utils.set_random_seed(dnn_seed(seed, dnn.name, dnn.seed))
        with memory_errors(), hint_at_shapes(sample):
            shapes = {name: spec.shape for name, spec in sample.by_name.items()}
            model = make_model(dnn, *model_arguments(shapes, label, num_classes))
            model, objective, found = checked(dnn, model, sample, num_classes, label, self._precision)
            freeze_layers(dnn.name, users_own(model), dnn.freeze)
            optimizer = make_optimizer(dnn.name, dnn.optimizer)
            inputs = DeviceInput(sample, on_device, floatx, label, sample_weights)
            scaling = LossScale() if self._precision == "mixed_float16" else None
            replica = TensorFlowReplica(model, optimizer, objective, inputs, scaling, dnn.accumulate, dnn.ema)
            of_model = f"DNN {dnn.name}: model {dnn.model}"
            names = [variable.name for variable in model.trainable_variables]
            found = [*found, *replica.warnings, *exclusions_in_vain(dnn.optimizer, names)]
            replica.warnings = [f"{of_model}: {text}" for text in found]
        if replica.exchange is not None:
            check_synchronised(dnn)
        log.info("%s: %s with %d parameters", dnn.name, dnn.model, replica.num_parameters)
        return replica

    def close(self) -> None:
        """Return memory to the process."""
        keras.utils.clear_session()


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
