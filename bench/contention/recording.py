"""A recording of real workers under contention, iteration by iteration, in a file of a few kB."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from contention.traces import Traces

FORMAT = 1


@dataclass(frozen=True)
class Recording:
    """One column per iteration; shapes (num_workers, num_iterations).

    Attributes:
        num_samples: samples of each worker's share.
        processing_s: seconds until the worker arrived at the collective.
        cpu, memory: shares as `hpcbal.telemetry.host.resource_use` measures them at that moment.
        about: what was recorded, when and how; stored as JSON.
    """

    num_samples: npt.NDArray[np.int64]
    processing_s: npt.NDArray[np.float64]
    cpu: npt.NDArray[np.float64]
    memory: npt.NDArray[np.float64]
    about: Mapping[str, Any]

    def traces(self) -> Traces:
        """Speeds of each iteration, and the shares at its beginning, which is the end of the one before."""
        speeds = (self.num_samples / self.processing_s)[:, 1:]
        return Traces(speeds, self.cpu[:, :-1], self.memory[:, :-1])

    def save(self, path: Path) -> None:
        """Write the file, compressed; numbers as float32."""
        np.savez_compressed(
            path,
            format=np.array(FORMAT),
            num_samples=self.num_samples.astype(np.int32),
            processing_s=self.processing_s.astype(np.float32),
            cpu=self.cpu.astype(np.float32),
            memory=self.memory.astype(np.float32),
            about=np.array(json.dumps(self.about)),
        )


def load_recording(path: Path) -> Recording:
    """Read a file of `Recording.save`.

    Raises: SystemExit: there is no such file, or it is not a recording.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if int(file["format"]) != FORMAT:
                raise ValueError(f"format {int(file['format'])}, expected {FORMAT}")
            return Recording(
                file["num_samples"].astype(np.int64),
                file["processing_s"].astype(np.float64),
                file["cpu"].astype(np.float64),
                file["memory"].astype(np.float64),
                json.loads(str(file["about"])),
            )
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise SystemExit(
            f"{path}: no recording ({error}); make one with bench/record_contention.py"
        ) from error
