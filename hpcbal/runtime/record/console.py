"""What rank 0 says to people while a run goes on, and at its end."""

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
from hpcbal.telemetry.views.progress import Progress

log = logging.getLogger(__name__)


class Console(Progress):
    """The progress of a run on stdout, with the warnings and the end that only a run has.

    `Journal` writes what is to be kept.

    Args:
        config: of the run.
        num_gpus: slots of the cluster.
        num_train: training samples of a pass.
    """

    def __init__(self, config: EnsembleConfig, num_gpus: int, num_train: int) -> None:
        # mpirun gives its ranks a terminal of their own; who started it knows whether there is a real one.
        super().__init__(sys.stdout, num_gpus, color=env.read("HPCBAL_LAUNCHED") == "terminal")
        self._config = config
        self._num_train = num_train
        self._over_limit: set[str] = set()  # DNNs that a warning has named

    def show(self, message: Event | Instruction) -> None:
        super().show(message)
        match message:
            case StartRound(plan) | StartAlone(plan):
                self._warn_of_limit(plan.groups)

    def note_bad_sample(self, where: str, reason: str) -> None:
        """A sample cannot be read, and no DNN is trained with it."""
        self.warn(f"broken sample skipped: {where}: {reason}")

    def note_loading(self, dnn_id: str, what: str) -> None:
        """A group reads data before it trains."""
        self.note(f"{dnn_id} loads its data: {what}")

    def show_end(self, table: str, fatal: HpcbalError | None) -> None:
        """Print how the run has ended; log what cannot be printed (mpirun was killed, a full disk).

        Args:
            table: as `Journal.finish` returns it.
            fatal: the error that has ended the run early, if any.
        """
        _print(f"\n{table}", sys.stdout, "the results")
        if fatal is not None:
            _print(f"hpcbal: {fatal}", sys.stderr, "the reason for the end")

    def _warn_of_limit(self, groups: Iterable[GroupPlan]) -> None:
        """Warn once of each DNN whose GPUs get more samples than the config allows."""
        sizes = {group.dnn_id: len(group.gpus) for group in groups if group.dnn_id not in self._over_limit}
        over = over_limit(self._config, sizes, self._num_train)
        if over:
            self._over_limit |= over.keys()
            self.warn(
                f"balance.max_samples_per_gpu: {told_limit(self._config.balance.max_samples_per_gpu, over)}"
            )


def _print(text: str, stream: TextIO, what: str) -> None:
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        log.warning("%s could not be printed: %s", what, error)
