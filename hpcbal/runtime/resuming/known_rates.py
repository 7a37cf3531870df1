"""Training rates that need not be measured again, and the profile that keeps them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcbal.config import EnsembleConfig
from hpcbal.errors import InputError, PolicyError
from hpcbal.policies.rates import (
    RateTable,
    profile_by_name,
    profile_from_dict,
    profile_to_dict,
    rate_key,
    starts_from_dict,
)
from hpcbal.telemetry.files.atomic_file import read_text, remove_quietly, write_json_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.table import count_text

log = logging.getLogger(__name__)


class KeptProfile:
    """Writes measurements into the file; those of earlier starts stay unless they are measured again.

    Args:
        path: path of the file, which need not exist.
        key_by_dnn: the key of each DNN's entry in the file, see `rate_keys`.

    Raises:
        InputError, PolicyError: if the existing file cannot be used.
    """

    def __init__(self, path: Path, key_by_dnn: Mapping[str, str]) -> None:
        self._path = path
        self._key_by_dnn = key_by_dnn
        self._earlier = read_profile(path)
        self._measured_s: dict[str, float] = {}

    def admit(self, key_by_dnn: Mapping[str, str]) -> None:
        """Take in DNNs that have joined: these are the keys of all."""
        self._key_by_dnn = key_by_dnn

    def note_start(self, dnn_id: str, seconds: float) -> None:
        """Record the seconds it took to start a DNN; only the first value, on the fewest slots, counts."""
        self._measured_s.setdefault(dnn_id, seconds)

    @property
    def start_s(self) -> Mapping[str, float]:
        """Seconds from the beginning of a round to its first step, by DNN, where known."""
        earlier = {} if self._earlier is None else starts_from_dict(self._earlier, self._key_by_dnn)
        return earlier | self._measured_s

    def write(self, rates: RateTable, preprocessing_samples_per_s: float | None) -> None:
        """Write all measurements into the file.

        Args:
            rates: the rates known so far.
            preprocessing_samples_per_s: rate of one preprocessor; None if not measured.
        """
        profile = profile_to_dict(rates, self._key_by_dnn, self._earlier, self._measured_s)
        if preprocessing_samples_per_s is not None:
            profile["preprocessing"] = {"samples_per_s": preprocessing_samples_per_s}
        write_json_atomic(self._path, profile)


SPEED_DOES_NOT_DEPEND_ON = frozenset({"schedule", "clip_norm", "no_weight_decay"})
"""Keys of an optimizer: rates that were measured with other values, or without them, still hold."""


def rate_keys(
    config: EnsembleConfig, sample_shape: Sequence[object], num_classes: int, device: str
) -> dict[str, str]:
    """The key of each DNN's rates, which contains all that they depend on (see `rate_key`).

    The config sets the rates of an emulated DNN by its name, so they are part of its key.
    """

    def device_of(name: str) -> str:
        emulated = f" {name} {dict(config.backend.rates.get(name, {}))}" if is_emulated else ""
        shared = f" shared by {config.slots.per_gpu}" if config.slots.per_gpu > 1 else ""
        return f"{config.backend.name}{emulated}, {device}{shared}, {config.backend.precision}"

    is_emulated = config.backend.is_emulated
    return {
        dnn.name: rate_key(
            model=dnn.model,
            args=dnn.args,
            optimizer=dnn.optimizer.model_dump(exclude=set(SPEED_DOES_NOT_DEPEND_ON)),
            batch_size=dnn.batch_size,
            sample_shape=sample_shape,
            num_classes=num_classes,
            device=device_of(dnn.name),
            accumulate=1 if is_emulated else dnn.accumulate,
            compile=dnn.compile and not is_emulated,
            augment=[(step.name, dict(step.args)) for step in dnn.augment if not is_emulated],
        )
        for dnn in config.dnns
    }


def known_rates(
    config: EnsembleConfig, run: RunDirectory, key_by_dnn: Mapping[str, str], slots_per_node: int
) -> RateTable:
    """The rates given in the config, or measured by an earlier run of the same networks.

    `schedule.profiling.rates` names a user's file, whose rates are looked up by the names of the DNNs. The
    run's own profile.json counts only for DNNs with the same model, batch size, data shape and device.

    Raises:
        InputError: if a given file cannot be used.
    """
    given = config.schedule.profiling.rates
    names = [dnn.name for dnn in config.dnns]
    if given is not None:
        return _rates_from(Path(given), lambda profile: profile_by_name(profile, names, slots_per_node))
    table = RateTable({}, slots_per_node)
    try:
        if run.profile.exists():
            table = _rates_from(
                run.profile, lambda profile: profile_from_dict(profile, key_by_dnn, slots_per_node)
            )
    except InputError as error:
        log.warning("%s; the rates are measured again", error)
        remove_quietly(run.profile)
    if config.backend.is_emulated:
        measured = {**config.backend.rates, **table.measured}
        table = RateTable(measured, slots_per_node)
    return table


def read_profile(path: Path) -> Mapping[str, Any] | None:
    """The content of a profile.json; None if there is no file.

    Raises:
        InputError: if the file cannot be read.
    """
    try:
        profile = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: the profile cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: the profile cannot be read ({error})") from error
    if not isinstance(profile, Mapping):
        raise InputError(f"{path}: the profile cannot be read (it holds no keys)")
    return profile


def _rates_from(path: Path, read: Callable[[Mapping[str, Any]], RateTable]) -> RateTable:
    profile = read_profile(path)
    if profile is None:
        raise InputError(f"schedule.profiling.rates: {path} does not exist; give a profile.json, or null")
    try:
        table = read(profile)
    except PolicyError as error:
        raise InputError(f"{path}: not a profile ({error})") from error
    if table.measured:  # else the run before has measured none: its paradigm needs none
        log.info("%s: rates of %s are known", path, count_text(len(table.measured), "DNN"))
    return table
