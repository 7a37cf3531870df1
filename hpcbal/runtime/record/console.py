"""Print the progress of a run and its results, on rank 0."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from hpcbal import env
from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.config import EnsembleConfig
from hpcbal.config.checks.warnings import over_limit, told_limit
from hpcbal.control.ensemble import Ensemble
from hpcbal.errors import HpcbalError
from hpcbal.events.ensemble import GroupPlan, StartGroup, StartRound
from hpcbal.events.line import Line
from hpcbal.processes import own_stream
from hpcbal.runtime.record.accounts import Accounts, BrokenSampleLines, SavedEpochs
from hpcbal.safe_text import printable
from hpcbal.telemetry.ledger.dnn_lines import BadSampleLine
from hpcbal.telemetry.views.progress import Progress
from hpcbal.telemetry.views.results import ResultRow
from hpcbal.telemetry.views.summary import BEST, differing_settings, main_metric_of, summary_of
from hpcbal.telemetry.views.table import count_text, key_line
from hpcbal.training.devices import CPU, EMULATED, is_gpu

log = logging.getLogger(__name__)


MOST_OF_ID = 12
"""Characters of a UUID that tell the GPUs of a node apart: `GPU-7f3c1a22`."""


def node_lines(roles: Roles, devices: Sequence[str | None]) -> list[str]:
    """Name the devices of each node: `n1: 4 GPUs (NVIDIA A100), 1 preprocessor, the scheduler`.

    Where slots are GPUs, a second line says which: `n1: slot 0: GPU 0 (GPU-7f3c1a22...), slot 1: GPU 1 ...`.

    Args:
        roles: the roles of all ranks.
        devices: the device of each rank, from `Recipe.prepare`; None for ranks that do not train.
    """
    lines = []
    for index, node in enumerate(roles.cluster.nodes):
        ranks = [info.rank for info in roles.ranks if info.node == index]
        kinds = Counter(device for rank in ranks if (device := devices[rank]) is not None)
        parts = [_slots_text(device, count) for device, count in kinds.items()]
        parts.append(count_text(roles.num_local_producers(index), "preprocessor"))
        if SCHEDULER_RANK in ranks:
            parts.append("the scheduler")
        lines.append(f"{node.host}: {', '.join(parts)}")
        slots = [rank for rank in roles.trainer_ranks if rank in ranks]
        used = [_device_text(roles, rank) for rank in slots if is_gpu(devices[rank] or CPU)]
        if used:
            lines.append(f"{node.host}: {', '.join(used)}")
    return lines


def _device_text(roles: Roles, rank: int) -> str:
    """The GPU of a slot, by its number among those that the rank sees and by the id of the driver."""
    gpu = roles.gpu_of(rank)
    if gpu is None:  # neither a mask nor a driver names it
        return f"{roles.title_of(rank)}: GPU {roles.local_slot(rank)}"
    index, name = gpu
    short = name if len(name) <= MOST_OF_ID else f"{name[:MOST_OF_ID]}..."
    return f"{roles.title_of(rank)}: GPU {index}" + ("" if name == str(index) else f" ({short})")


def _slots_text(device: str, count: int) -> str:
    if device.startswith(CPU):  # the number of threads follows
        each = " each" if count > 1 else ""
        return f"{count_text(count, 'slot')} of CPU cores ({device.removeprefix(f'{CPU}, ')}{each})"
    if device == EMULATED:
        return count_text(count, "emulated slot")
    return f"{count_text(count, 'GPU')} ({device})"


class ResultTable:
    """Makes one row per DNN from its history, its costs and the settings in which it differs from others.

    Args:
        config: the run's configuration.
        accounts: the cost of each DNN.
        bad_before: ids of samples that earlier starts could not use.
        saved: the epochs whose weights are on disk.
    """

    def __init__(
        self, config: EnsembleConfig, accounts: Accounts, bad_before: Collection[int], saved: SavedEpochs
    ) -> None:
        self.admit(config)
        self._accounts = accounts
        self._bad_before = frozenset(bad_before)
        self._saved = saved

    def admit(self, config: EnsembleConfig) -> None:
        """Take in all DNNs of a configuration, and the settings in which they differ."""
        self._settings = differing_settings({dnn.name: dnn.model_dump() for dnn in config.dnns})

    def rows(self, ensemble: Ensemble, bad: Collection[int]) -> list[ResultRow]:
        """One row per DNN, in the order of the config.

        Args:
            bad: ids of samples that this start could not use.
        """
        num_bad = len(self._bad_before.union(bad))
        rows = []
        epochs = {n: [record.metrics for record in dnn.history] for n, dnn in ensemble.state.dnns.items()}
        best_key = BEST + main_metric_of(epochs.values())
        for name, dnn in ensemble.state.dnns.items():
            numbers = summary_of(epochs[name])
            account = self._accounts.now(name)
            rows.append(
                ResultRow(
                    name=name,
                    state=str(dnn.state),
                    epochs=dnn.epochs,
                    best=numbers.pop(best_key, None),
                    wall_time_s=account.wall_time_s,
                    slot_seconds=account.slot_seconds,
                    cause=f"{dnn.cause}: {key_line(dnn.detail)}" if dnn.cause else "",
                    numbers={**numbers, "bad_samples": num_bad, **self._saved.numbers(name)},
                    settings=self._settings[name],
                    best_key=best_key,
                )
            )
        return rows


class Console(Progress):
    """Prints the progress of a run on stdout, with the warnings and results that only a real run has.

    It is one of the subscribers of `Journal`; the others write files.

    Args:
        config: the run's configuration.
        num_slots: number of slots in the cluster.
        num_train: number of training samples in a pass.
    """

    def __init__(self, config: EnsembleConfig, num_slots: int, num_train: int) -> None:
        # mpirun gives its ranks a pseudo-terminal; only `hpcbal run` knows whether there is a real terminal.
        super().__init__(own_stream("stdout"), num_slots, color=env.read("HPCBAL_LAUNCHED") == "terminal")
        self._config = config
        self._num_train = num_train
        self._broken = BrokenSampleLines()
        self._over_limit: set[str] = set()  # DNNs that a warning has named

    def handle(self, message: Line) -> None:
        super().handle(message)
        match message:
            case StartRound(plan) | StartGroup(plan):
                self._warn_of_limit(plan.groups)
            case BadSampleLine(_, where, reason):  # all DNNs skip it
                text = self._broken.add(where, reason)
                if text is not None:
                    self.warn(text)

    def admit(self, config: EnsembleConfig) -> None:
        """Take in DNNs that have joined."""
        self._config = config

    def note_loading(self, dnn_id: str, what: str) -> None:
        """Report that a group reads data before it trains."""
        self.note(f"{dnn_id} loads its data: {what}")

    def show_end(self, table: str, fatal: HpcbalError | None) -> None:
        """Print the results; log a warning if printing fails (mpirun was killed, or the disk is full).

        Args:
            table: the text that `Journal.finish` returned.
            fatal: the error that ended the run early, if any.
        """
        _print(f"\n{table}", "stdout", "the results")
        if fatal is not None:
            _print(f"hpcbal: {fatal}", "stderr", "the error that ended the run")

    def _warn_of_limit(self, groups: Iterable[GroupPlan]) -> None:
        """Warn once about each DNN whose slots get more samples than the config allows."""
        sizes = {group.dnn_id: len(group.slots) for group in groups if group.dnn_id not in self._over_limit}
        over = over_limit(self._config, sizes, self._num_train)
        if over:
            self._over_limit |= over.keys()
            self.warn(
                f"balance.max_samples_per_slot: {told_limit(self._config.balance.max_samples_per_slot, over)}"
            )


def _print(text: str, stream: str, what: str) -> None:
    try:
        print(printable(text), file=own_stream(stream), flush=True)
    except OSError as error:
        log.warning("%s could not be printed: %s", what, error)
