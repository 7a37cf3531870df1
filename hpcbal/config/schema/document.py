"""The defaults that files may hold for what they list: keys of an item, declared as there."""

from __future__ import annotations

from pydantic import BaseModel, create_model

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.jobs import SharedJobConfig
from hpcbal.config.schema.section import Section

DEFAULT_KEYS = (
    "augment",
    "optimizer",
    "batch_size",
    "accumulate",
    "ema",
    "stop",
    "balance",
    "seed",
    "compile",
    "loss",
    "loss_weights",
    "metrics",
    "label_smoothing",
    "class_weights",
    "callbacks",
    "init",
    "freeze",
    "k_fold",
)
"""Keys of a DNN that `defaults` may hold."""

JOB_DEFAULT_KEYS = (
    "arrives_s",
    "seed",
    "seconds_per_sample",
    "mini_batch",
    "stop",
    "objective",
    "blocks",
)
"""Keys of a job that `defaults` may hold, where many share machines."""


def _defaults_of(item: type[BaseModel], keys: tuple[str, ...], about: str) -> type[Section]:
    """Make the section of defaults; that a key is missing is no error there, whatever the item needs.

    Args:
        item: section of an item.
        keys: its keys that have defaults.
        about: what the section is.
    """
    fields = {name: (item.model_fields[name].annotation, item.model_fields[name]) for name in keys}
    return create_model("Defaults", __base__=Section, __doc__=about, **fields)  # type: ignore[call-overload,no-any-return]


Defaults = _defaults_of(DnnConfig, DEFAULT_KEYS, "Defaults for keys that a DNN omits.")
JobDefaults = _defaults_of(SharedJobConfig, JOB_DEFAULT_KEYS, "Defaults for keys that a job omits.")
