"""Conversion of hpcbal's values to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.telemetry.files.atomic_file import to_jsonable


@dataclass(frozen=True)
class Inner:
    """A value with a neutral name."""

    job: str
    by_job: Mapping[str, float]


@dataclass(frozen=True)
class Outer:
    """Holds others at some depth."""

    jobs: tuple[Inner, ...]
    groups: Mapping[str, tuple[Inner, ...]]


def test_fields_get_their_other_names_at_any_depth_and_keys_of_mappings_do_not() -> None:
    value = Outer((Inner("job", {"job": 1.0}),), {"job": (Inner("b", {}),)})
    assert to_jsonable(value, {"job": "dnn", "jobs": "dnns"}) == {
        "dnns": [{"dnn": "job", "by_job": {"job": 1.0}}],
        "groups": {"job": [{"dnn": "b", "by_job": {}}]},
    }
    assert to_jsonable(value)["jobs"][0]["job"] == "job"
