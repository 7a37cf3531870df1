"""The rows of results.csv and of the table at the end of a run."""

from __future__ import annotations

from collections.abc import Collection

from hpcbal.config import EnsembleConfig
from hpcbal.control import Ensemble
from hpcbal.runtime.record.accounts import Accounts
from hpcbal.runtime.record.saved_epochs import SavedEpochs
from hpcbal.telemetry import ResultRow
from hpcbal.telemetry.views.settings import differing_settings
from hpcbal.telemetry.views.summary import BEST, main_metric_of, summary_of
from hpcbal.telemetry.views.table import key_line


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
        self._settings = differing_settings({dnn.name: dnn.model_dump() for dnn in config.dnns})
        self._accounts = accounts
        self._bad_before = frozenset(bad_before)
        self._saved = saved

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
