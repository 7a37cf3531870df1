"""Load the backend of a framework, or of each DNN's own one."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence

from hpcbal.config.checks.frameworks import TITLES, Framework, framework_of
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.ensemble import BackendConfig, EnsembleConfig
from hpcbal.data.arrays import Affine
from hpcbal.data.spec import CLASS_LABEL, LabelSpec, SampleSpec
from hpcbal.errors import InputError
from hpcbal.training.backend import Backend, Replica
from hpcbal.training.devices import LocalSlots
from hpcbal.training.weights import Array

_MODULE: Mapping[Framework, str] = {
    "tensorflow": "hpcbal.training.keras.tensorflow_backend",
    "torch": "hpcbal.training.torch.backend",
}


def import_framework(framework: Framework, who: str) -> None:
    """Import a framework and its room, which takes seconds.

    Args:
        who: what needs it, for the message.

    Raises:
        InputError: if it cannot be imported.
    """
    try:
        importlib.import_module(_MODULE[framework])
    except ImportError as error:
        raise InputError(
            f"{who} needs {TITLES[framework]}, but it cannot be imported here ({error}); install it with pip "
            f"install 'hpcbal[{framework}]', set the DNN's framework if it is another one, or try the "
            "ensemble with backend.name emulated"
        ) from error


def load_framework(framework: Framework, precision: str, slots: LocalSlots | None, who: str) -> Backend:
    """Make the backend of a framework.

    Args:
        precision: `backend.precision`.
        slots: on this rank's GPU, or its share of the cores; None: on the cores, without other ranks.
        who: what needs it, for messages.

    Raises:
        InputError: if the framework cannot be imported.
        ClusterError: if two slots would use one GPU, or the framework sees none of those that were
            given.
    """
    import_framework(framework, who)
    if framework == "torch":
        from hpcbal.training.torch.backend import TorchBackend
        from hpcbal.training.torch.setup import setup_torch

        if slots is None:
            return TorchBackend("cpu", None, precision)
        device, place = setup_torch(slots)
        return TorchBackend(device, place, precision)
    from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend, setup_tensorflow

    if slots is None:
        return TensorFlowBackend("cpu", precision)
    return TensorFlowBackend(setup_tensorflow(slots), precision)


def with_models_to_come(config: EnsembleConfig) -> tuple[DnnConfig, ...]:
    """Return the DNNs of a run, and one for each model and framework that its searches may propose."""
    dnns = list(config.dnns)
    for search in config.searches:
        like = next((dnn for dnn in config.dnns if dnn.name in search.drawn), None)
        if like is None or not search.num_open:
            continue
        choices = {
            key: found.choice or (getattr(like, key),)
            for key in ("model", "framework")
            if (found := search.search.space.get(key)) is not None
        }
        for values in itertools.product(*choices.values()):
            dnns.append(like.model_copy(update=dict(zip(choices, values, strict=True))))
    return tuple(dnns)


def needs_of(dnns: Iterable[DnnConfig], backend: BackendConfig) -> dict[Framework, str]:
    """Return the frameworks that DNNs need, with the name of the first DNN that needs each."""
    found: dict[Framework, str] = {}
    for dnn in dnns:
        found.setdefault(framework_of(dnn, backend), f"DNN {dnn.name}: model {dnn.model}")
    return found


class NativeBackend(Backend):
    """Builds each DNN with its own framework; see `hpcbal.training.backend.Backend`.

    Args:
        config: `backend`.
        dnns: all that may be built; their frameworks are loaded.
        slots: where to compute.

    Raises:
        InputError, ClusterError: as for `load_framework`.
    """

    name = "native"

    def __init__(self, config: BackendConfig, dnns: Sequence[DnnConfig], slots: LocalSlots) -> None:
        self._config = config
        self._by_framework = {
            framework: load_framework(framework, config.precision, slots, who)
            for framework, who in needs_of(dnns, config).items()
        }
        self.device = next(iter(self._by_framework.values())).device
        if "torch" in self._by_framework:
            self.distributed = self._by_framework["torch"].distributed

    def build(
        self,
        dnn: DnnConfig,
        sample: SampleSpec,
        num_classes: int,
        seed: int,
        on_device: Sequence[Affine] = (),
        label: LabelSpec = CLASS_LABEL,
        sample_weights: Array | None = None,
    ) -> Replica:
        framework = framework_of(dnn, self._config)
        backend = self._by_framework.get(framework)
        if backend is None:
            raise InputError(
                f"DNN {dnn.name}: needs {TITLES[framework]}, which no DNN needed when this start "
                "began; the next start loads it: run the same command with --retry-failed"
            )
        return backend.build(dnn, sample, num_classes, seed, on_device, label, sample_weights)

    def close(self) -> None:
        for backend in self._by_framework.values():
            backend.close()
