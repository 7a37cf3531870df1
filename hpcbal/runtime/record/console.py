"""Print the progress of a run and its results, on rank 0."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import TextIO

from hpcbal import env
from hpcbal.config import EnsembleConfig
from hpcbal.config.checks.group_size import over_limit, told_limit
from hpcbal.control.messages import Event, GroupPlan, Instruction, StartAlone, StartRound
from hpcbal.errors import HpcbalError
from hpcbal.printable import printable
from hpcbal.runtime.record.broken_samples import BrokenSampleLines
from hpcbal.telemetry.views.progress import Progress

log = logging.getLogger(__name__)


class Console(Progress):
    """Prints the progress of a run on stdout, with the warnings and results that only a real run has.

    `Journal` writes the permanent records.

    Args:
        config: the run's configuration.
        num_gpus: number of slots in the cluster.
        num_train: number of training samples in a pass.
    """

    def __init__(self, config: EnsembleConfig, num_gpus: int, num_train: int) -> None:
        # mpirun gives its ranks a pseudo-terminal; only `hpcbal run` knows whether there is a real terminal.
        super().__init__(sys.stdout, num_gpus, color=env.read("HPCBAL_LAUNCHED") == "terminal")
        self._config = config
        self._num_train = num_train
        self._broken = BrokenSampleLines()
        self._over_limit: set[str] = set()  # DNNs that a warning has named

    def show(self, message: Event | Instruction) -> None:
        super().show(message)
        match message:
            case StartRound(plan) | StartAlone(plan):
                self._warn_of_limit(plan.groups)

    def note_bad_sample(self, where: str, reason: str) -> None:
        """Warn that a sample cannot be read and is skipped by all DNNs, unless others had the same fault."""
        line = self._broken.add(where, reason)
        if line is not None:
            self.warn(line)

    def note_loading(self, dnn_id: str, what: str) -> None:
        """Report that a group reads data before it trains."""
        self.note(f"{dnn_id} loads its data: {what}")

    def show_end(self, table: str, fatal: HpcbalError | None) -> None:
        """Print the results; log a warning if printing fails (mpirun was killed, or the disk is full).

        Args:
            table: the text that `Journal.finish` returned.
            fatal: the error that ended the run early, if any.
        """
        _print(f"\n{table}", sys.stdout, "the results")
        if fatal is not None:
            _print(f"hpcbal: {fatal}", sys.stderr, "the error that ended the run")

    def _warn_of_limit(self, groups: Iterable[GroupPlan]) -> None:
        """Warn once about each DNN whose GPUs get more samples than the config allows."""
        sizes = {group.dnn_id: len(group.gpus) for group in groups if group.dnn_id not in self._over_limit}
        over = over_limit(self._config, sizes, self._num_train)
        if over:
            self._over_limit |= over.keys()
            self.warn(
                f"balance.max_samples_per_gpu: {told_limit(self._config.balance.max_samples_per_gpu, over)}"
            )


def _print(text: str, stream: TextIO, what: str) -> None:
    try:
        print(printable(text), file=stream, flush=True)
    except OSError as error:
        log.warning("%s could not be printed: %s", what, error)
