"""The hyper-parameters in which the jobs of a run differ, as text for tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_OMITTED = ("name",)


def differing_settings(config_by_job: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Find the keys whose values differ between jobs, such as those that a sweep varies.

    Args:
        config_by_job: the whole config of each job, with plain values.

    Returns:
        By job, the text of its value by dotted key; all jobs have the same keys, in the order in which the
        configs list them. A key that a job lacks has an empty text.
    """
    flat = {name: dict(_flat("", config)) for name, config in config_by_job.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings if key not in _OMITTED)
    differing = [key for key in keys if len({settings.get(key, "") for settings in flat.values()}) > 1]
    return {name: {key: settings.get(key, "") for key in differing} for name, settings in flat.items()}


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) for every leaf."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), below)
    elif prefix and not (isinstance(value, Mapping) or value is None):
        yield prefix, value if isinstance(value, str) else json.dumps(value, default=str)
