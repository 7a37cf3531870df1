"""What somebody must know to use an exported model without hpcbal, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcbal.checkpoint import KeptWeights
from hpcbal.config import DnnConfig, EnsembleConfig
from hpcbal.data import SampleSource
from hpcbal.data.operations import OPERATIONS
from hpcbal.telemetry import environment_versions

SCHEMA = 1
_OUTSIDE_TRAINING = {"random_crop": "cuts out the middle"}
"""What random operations do with samples that are not trained; others leave them as they are."""


def describe(
    config: EnsembleConfig,
    dnn: DnnConfig,
    source: SampleSource,
    weights: KeptWeights,
    output_shape: Sequence[int],
    meaning: str,
    format_name: str,
    modules: Sequence[str],
) -> dict[str, Any]:
    """The description of an exported model.

    Args:
        source: the run's data.
        weights: those that were exported.
        output_shape: of the model, for one sample.
        meaning: what its outputs are.
        format_name: `keras` or `tensorflow`.
        modules: what must be imported before the model is loaded.
    """
    raw, label = source.dataset.sample_spec, source.dataset.label_spec
    names = getattr(source.dataset, "class_names", None)
    return {
        "schema": SCHEMA,
        "format": format_name,
        "versions": environment_versions(),
        "run": config.name,
        "dnn": dnn.name,
        "model": {"callable": dnn.model, "args": dict(dnn.args)},
        "import_before_loading": list(modules),
        "weights": {
            "which": weights.which,
            "epoch": weights.epoch,
            "monitor": weights.monitor or None,
            "metrics": dict(weights.metrics),
            "trained_on": weights.fingerprint,
        },
        "dataset": {
            "callable": config.data.dataset,
            "args": dict(config.data.args),
            "sample": None if raw is None else {"shape": list(raw.shape), "dtype": raw.dtype},
        },
        "preprocessing": _operations(config, len(source.on_device)),
        "input": {
            "is": "a batch of samples after all operations of `preprocessing`",
            "shape": [None, *source.sample_spec.shape],
            "dtype": "float64" if config.backend.precision == "float64" else "float32",
        },
        "output": {
            "is": meaning,
            "shape": [None, *output_shape],
        },
        "label": {"shape": list(label.shape), "dtype": label.dtype},
        "classes": {
            "number": source.num_classes,
            "names": list(names) if isinstance(names, list | tuple) else None,
        }
        if label.is_class
        else None,
    }


def _operations(config: EnsembleConfig, num_on_device: int) -> list[dict[str, Any]]:
    """The operations in order, with all arguments, and where hpcbal ran them."""
    first_on_device = len(config.preprocessing) - num_on_device
    found = []
    for index, step in enumerate(config.preprocessing):
        entry: dict[str, Any] = {
            "operation": step.name,
            "args": dict(step.args),
            "ran_on": "preprocessor" if index < first_on_device else "device",
        }
        if ":" in step.name:
            entry["outside_training"] = "is called without a random stream"
        elif getattr(OPERATIONS.get(step.name), "is_random", False):
            entry["outside_training"] = _OUTSIDE_TRAINING.get(step.name, "leaves samples as they are")
        found.append(entry)
    return found
