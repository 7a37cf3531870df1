"""What rank 0 says to people while a run goes on, and at its end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TextIO

from hpcbal import env
from hpcbal.config import EnsembleConfig
from hpcbal.config.checks.group_size import over_limit, told_limit
from hpcbal.control.messages import DnnFailed, Event, GroupPlan, Instruction, StartAlone, StartRound
from hpcbal.errors import HpcbalError
from hpcbal.telemetry import Progress
from hpcbal.telemetry.views.table import telling_line

log = logging.getLogger(__name__)


class Console:
    """Says what happens, as `Progress` does; what is to be kept of it, `Journal` writes.

    Args:
        config: of the run.
        num_gpus: slots of the cluster.
        num_train: training samples of a pass.
    """

    def __init__(self, config: EnsembleConfig, num_gpus: int, num_train: int) -> None:
        self._config = config
        self._num_train = num_train
        # mpirun gives its ranks a terminal of their own; who started it knows whether there is a real one.
        color = env.read("HPCBAL_LAUNCHED") == "terminal"
        self._progress = Progress(sys.stdout, num_gpus, color=color)
        self._over_limit: set[str] = set()  # DNNs of which people know

    def show(self, message: Event | Instruction) -> None:
        """Before an event is taken in, and before an instruction is performed."""
        match message:
            case DnnFailed():
                self._progress.show(replace(message, detail=telling_line(message.detail)))
            case StartRound(plan) | StartAlone(plan):
                self._progress.show(message)
                self._warn_of_limit(plan.groups)
            case _:
                self._progress.show(message)

    def note(self, text: str) -> None:
        """One more thing to know; further lines of `text` are indented."""
        self._progress.note(text)

    def warn(self, text: str) -> None:
        """Something that the user may want to mend."""
        self.note(f"warning: {text}")

    def note_bad_sample(self, where: str, reason: str) -> None:
        """A sample cannot be read, and no DNN is trained with it."""
        self.warn(f"broken sample skipped: {where}: {reason}")

    def note_loading(self, dnn_id: str, what: str) -> None:
        """A group reads data before it trains."""
        self.note(f"{dnn_id} loads its data: {what}")

    def show_end(self, table: str, fatal: HpcbalError | None) -> None:
        """How the run has ended; the log tells what could not be printed (mpirun was killed, a full disk).

        Args:
            table: as `Journal.finish` returns it.
            fatal: what has ended the run before its time; None: nothing has.
        """
        _print(f"\n{table}", sys.stdout, "the results")
        if fatal is not None:
            _print(f"hpcbal: {fatal}", sys.stderr, "the reason for the end")

    def _warn_of_limit(self, groups: Iterable[GroupPlan]) -> None:
        """Tell once of each DNN whose GPUs get more than the user has said that they take."""
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
