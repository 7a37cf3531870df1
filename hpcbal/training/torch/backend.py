"""Build modules of PyTorch for training."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from hpcbal.config.imports import load_object
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.arrays import Affine
from hpcbal.data.spec import CLASS_LABEL, LabelSpec, SampleSpec
from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.backend import Backend
from hpcbal.training.devices import dnn_seed
from hpcbal.training.groups import NonFiniteError
from hpcbal.training.outputs import model_arguments
from hpcbal.training.rank_share import module_shape
from hpcbal.training.torch.inputs import TorchInput
from hpcbal.training.torch.model import checked
from hpcbal.training.torch.replica import TorchReplica
from hpcbal.training.torch.setup import distributed_backend, memory_errors
from hpcbal.training.user_model import (
    check_synchronised,
    exclusions_in_vain,
    hint_at_shapes,
    make_model,
    user_errors,
)
from hpcbal.training.weights import Array

log = logging.getLogger(__name__)

_ARITHMETIC = {"mixed_float16": torch.float16, "mixed_bfloat16": torch.bfloat16}


class TorchBackend(Backend):
    """Builds modules of PyTorch; see `hpcbal.training.backend.Backend`.

    Args:
        device: for people, as `setup_torch` returned it.
        place: where modules compute.
        precision: "float32" or "float64" for weights and arithmetic in the whole process; "mixed_float16" or
            "mixed_bfloat16" for arithmetic of that type on weights of float32.
    """

    name = "torch"

    def __init__(
        self, device: str = "cpu", place: torch.device | None = None, precision: str = "float32"
    ) -> None:
        self.device = device
        self._place = torch.device("cpu") if place is None else place
        self.distributed = distributed_backend(self._place)
        self._arithmetic = _ARITHMETIC.get(precision)
        self._dtype = torch.float64 if precision == "float64" else torch.float32
        self._dtype_before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)

    def build(
        self,
        dnn: DnnConfig,
        sample: SampleSpec,
        num_classes: int,
        seed: int,
        on_device: Sequence[Affine] = (),
        label: LabelSpec = CLASS_LABEL,
        sample_weights: Array | None = None,
    ) -> TorchReplica:
        """Build a replica of a module; its weights come from PyTorch's generator, which is seeded for it.

        Raises:
            InputError: if the optimizer is unknown, the module does not fit, the loss or a metric does not
                fit the labels, or the module has synchronised layers and MPI does not support them.
        """
        with user_errors(dnn, "importing it"):
            load_object(dnn.model)
        own_seed = dnn_seed(seed, dnn.name, dnn.seed)
        with memory_errors(), hint_at_shapes(sample), self._seeded(own_seed):
            shapes = {name: module_shape(spec.shape) for name, spec in sample.by_name.items()}
            module = make_model(dnn, *model_arguments(shapes, label, num_classes))
            found = checked(dnn, module, sample, num_classes, self._dtype, label)
            inputs = TorchInput(sample, on_device, self._dtype, self._place, label, sample_weights)
            names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
            warnings = [*found.warnings, *exclusions_in_vain(dnn.optimizer, names)]
            found = replace(
                found, warnings=[f"DNN {dnn.name}: model {dnn.model}: {text}" for text in warnings]
            )
            replica = TorchReplica(
                dnn, module, found, inputs, own_seed, self._dtype, self._place, self._arithmetic
            )
            if dnn.compile:
                _compile(dnn, replica, sample, label, num_classes)
        if replica.exchange is not None:
            check_synchronised(dnn)
        log.info("%s: %s with %d parameters", dnn.name, dnn.model, replica.num_parameters)
        return replica

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Seed PyTorch's generator and set the default type inside the block: scripts have their own."""
        before = torch.get_default_dtype()
        devices = [] if self._place.type == "cpu" else [self._place]
        with torch.random.fork_rng(devices, device_type=devices[0].type if devices else "cuda"):
            torch.manual_seed(seed)
            torch.set_default_dtype(self._dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(before)

    def close(self) -> None:
        """Give the process its default type back, which a script or a notebook may have set."""
        torch.set_default_dtype(self._dtype_before)


def _compile(
    dnn: DnnConfig, replica: TorchReplica, sample: SampleSpec, label: LabelSpec, num_classes: int
) -> None:
    """Compile a step and an evaluation, before anybody waits for them.

    Raises:
        InputError: if the module cannot be compiled.
    """
    from hpcbal.training.torch.compiling import Probes

    probes = Probes.of(sample, label, num_classes, dnn.accumulate)
    try:
        with contextlib.suppress(NonFiniteError):  # of samples that are none
            replica.compute(probes, len(probes.ids))
        with contextlib.suppress(NonFiniteError):
            replica.evaluate(probes)
    except UserCodeError as error:
        raise InputError(
            f"DNN {dnn.name}: compile: got true, but model {dnn.model} cannot be compiled: {error}; leave "
            "compile out"
        ) from error
