"""Load TensorFlow for a rank that computes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hpcbal.cluster.layout import granted_gpus
from hpcbal.config import EnsembleConfig
from hpcbal.errors import InputError
from hpcbal.training.backend import Backend


@dataclass(frozen=True, slots=True)
class LocalSlots:
    """The ranks of a node that compute.

    Attributes:
        mine: place of this rank among them, from 0.
        cores: affinity mask of each.
    """

    mine: int
    cores: tuple[frozenset[int], ...]


def load_backend(config: EnsembleConfig, slots: LocalSlots) -> Backend:
    """Make the TensorFlow backend on this rank's GPU, or its share of the cores; not collective.

    Raises:
        InputError: if TensorFlow cannot be imported.
        ClusterError: if the node has more slots than GPUs, or TensorFlow sees none of those that were given.
    """
    try:
        from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
        from hpcbal.training.keras.tensorflow_setup import setup_tensorflow
    except ImportError as error:
        raise InputError(
            f"backend.name is tensorflow, but TensorFlow cannot be imported here ({error}); install it with "
            "pip install 'hpcbal[tensorflow]', or try the ensemble with backend.name emulated"
        ) from error
    device = setup_tensorflow(
        slots.mine,
        len(slots.cores),
        slots.cores,
        wanted=config.slots.device,
        granted=granted_gpus(os.environ),
    )
    return TensorFlowBackend(device, config.backend.precision)
