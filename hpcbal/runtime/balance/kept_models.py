"""Store the fitted speed models of a DNN's groups in the output directory, for later rounds and starts."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from pathlib import Path

from hpcbal.errors import OutputError
from hpcbal.policies.batching.speed import SpeedPredictor
from hpcbal.speed_models.packing import DamagedModelError, pack_model, unpack_model
from hpcbal.telemetry.files.atomic_file import write_atomic

log = logging.getLogger(__name__)


class KeptModel:
    """The file of one predictor for one DNN on one set of GPUs; each worker has its own model.

    If the file is damaged or cannot be written, a warning is logged and training continues without it.

    Args:
        folder: the DNN's directory.
        predictor: name of the predictor.
        workers: identifiers of the group's workers, in rank order; GPUs of other hosts are other workers.
    """

    def __init__(self, folder: Path, predictor: str, workers: Sequence[str | int]) -> None:
        which = zlib.crc32(" ".join(map(str, workers)).encode())
        self.path = folder / f"speeds-{predictor}-{len(workers)}-gpus-{which:08x}.npz"
        self._predictor = predictor
        self._num_workers = len(workers)

    def read(self) -> SpeedPredictor | None:
        """The model; None if the file holds no usable model."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s: the speed model cannot be read: %s", self.path, error)
            return None
        try:
            predictor, num_workers, model = unpack_model(data)
        except DamagedModelError as error:
            log.warning("%s: the speed model is ignored: %s", self.path, error)
            return None
        if (predictor, num_workers) != (self._predictor, self._num_workers):
            log.warning(
                "%s: the speed model is ignored: it was fitted by %s for %d workers",
                self.path,
                predictor,
                num_workers,
            )
            return None
        return model

    def write(self, model: SpeedPredictor) -> None:
        """Replace the file; may run in any thread."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, pack_model(self._predictor, model))
        except (OSError, OutputError) as error:
            log.warning("the speed model is not saved: %s", error)
