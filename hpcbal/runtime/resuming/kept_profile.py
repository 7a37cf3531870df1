"""The run's profile.json: what is measured of its networks, for plans, predictions and the next start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcbal.policies import RateTable, profile_to_dict, starts_from_dict
from hpcbal.runtime.resuming.known_rates import read_profile
from hpcbal.telemetry import write_json_atomic


class KeptProfile:
    """What an earlier start has measured stays in the file, unless it is measured anew.

    Args:
        path: of the file, which need not exist.
        key_by_dnn: names the entries of the file, see `rate_keys`.

    Raises:
        InputError, PolicyError: the file that is there cannot be used.
    """

    def __init__(self, path: Path, key_by_dnn: Mapping[str, str]) -> None:
        self._path = path
        self._key_by_dnn = key_by_dnn
        self._earlier = read_profile(path)
        self._measured_s: dict[str, float] = {}

    def note_start(self, dnn_id: str, seconds: float) -> None:
        """What it has taken to start a DNN; the first measurement counts, which is on the fewest GPUs."""
        self._measured_s.setdefault(dnn_id, seconds)

    @property
    def start_s(self) -> Mapping[str, float]:
        """By DNN, seconds from the beginning of a round to its first step; of those where it is known."""
        earlier = {} if self._earlier is None else starts_from_dict(self._earlier, self._key_by_dnn)
        return earlier | self._measured_s

    def write(self, rates: RateTable, preprocessing_samples_per_s: float | None) -> None:
        """Put all that is known into the file.

        Args:
            rates: known so far.
            preprocessing_samples_per_s: what one preprocessor makes; None: not measured.
        """
        profile = profile_to_dict(rates, self._key_by_dnn, self._earlier, self._measured_s)
        if preprocessing_samples_per_s is not None:
            profile["preprocessing"] = {"samples_per_s": preprocessing_samples_per_s}
        write_json_atomic(self._path, profile)
