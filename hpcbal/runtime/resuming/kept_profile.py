"""The run's profile.json: measurements of its networks for plans, predictions and the next start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcbal.policies import RateTable, profile_to_dict, starts_from_dict
from hpcbal.runtime.resuming.known_rates import read_profile
from hpcbal.telemetry import write_json_atomic


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

    def note_start(self, dnn_id: str, seconds: float) -> None:
        """Record the seconds it took to start a DNN; only the first value, on the fewest GPUs, counts."""
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
