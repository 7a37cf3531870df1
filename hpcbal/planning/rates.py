"""Where a plan's rates come from: a file, the configuration, or an earlier run's output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcbal.config import EnsembleConfig
from hpcbal.errors import InputError, PolicyError
from hpcbal.policies.rates import RateTable, profile_by_name, starts_by_name
from hpcbal.telemetry.files.atomic_file import read_text

PROFILE_NAME = "profile.json"


@dataclass(frozen=True, slots=True)
class PlanRates:
    """Rates of all DNNs of a configuration.

    Attributes:
        table: samples/s by number of slots by DNN; includes m = 1 for every DNN.
        preprocessing_samples_per_s: rate of one preprocessor; None if not measured.
        source: origin of the rates, for people.
        start_s: seconds to start a DNN, for DNNs with a measurement.
    """

    table: RateTable
    preprocessing_samples_per_s: float | None
    source: str
    start_s: Mapping[str, float] = field(default_factory=dict)


def find_rates(
    config: EnsembleConfig, slots_per_node: int, profile: Path | None = None, *, command: str = "CONFIG"
) -> PlanRates:
    """Look for rates in this order: `profile`, schedule.profiling.rates, backend.rates, output directory.

    Args:
        config: configuration whose DNNs need rates.
        slots_per_node: slots per node of the planned cluster, >= 1.
        profile: a profile.json, or a directory that contains one.
        command: the configuration as given on the command line, for messages.

    Raises:
        InputError: if there are no rates, some DNN has none, or the file cannot be used.
    """
    measure = f"measure them with 'hpcbal profile {command}'"
    given = config.schedule.profiling.rates
    default = Path(config.output.dir) / PROFILE_NAME
    if profile is not None:
        path = profile / PROFILE_NAME if profile.is_dir() else profile
        found = _from_file(config, path, slots_per_node, measure)
    elif given is not None:
        found = _from_file(config, Path(given), slots_per_node, measure)
    elif config.backend.is_emulated:
        found = PlanRates(RateTable(config.backend.rates, slots_per_node), None, "backend.rates")
    elif default.is_file():
        found = _from_file(config, default, slots_per_node, measure)
    else:
        raise InputError(
            f"no training rates: {default} does not exist; {measure}, or give a profile with --profile FILE "
            "or in schedule.profiling.rates"
        )
    names = [dnn.name for dnn in config.dnns]
    missing = [name for name in names if not found.table.is_measured(name, 1)]
    if missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise InputError(f"{found.source}: has no rate on 1 slot for {shown}; {measure}")
    return found


def _from_file(config: EnsembleConfig, path: Path, slots_per_node: int, measure: str) -> PlanRates:
    try:
        profile = json.loads(read_text(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: profile cannot be read: {reason}; {measure}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a profile, because it is not JSON ({error}); {measure}") from None
    try:
        names = [dnn.name for dnn in config.dnns]
        table, start_s = profile_by_name(profile, names, slots_per_node), starts_by_name(profile, names)
    except PolicyError as error:
        raise InputError(f"{path}: {error}") from None
    return PlanRates(table, _preprocessing(profile, path), str(path), start_s)


def _preprocessing(profile: Mapping[str, Any], path: Path) -> float | None:
    section = profile.get("preprocessing")
    if section is None:
        return None
    rate = section.get("samples_per_s") if isinstance(section, Mapping) else None
    if not isinstance(rate, int | float) or isinstance(rate, bool) or rate <= 0:
        raise InputError(f"{path}: preprocessing.samples_per_s: got {rate!r}, allowed: a number above 0")
    return float(rate)
