"""The app of a user: one class that says which tables there are, and what a turn computes from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.events.history import OTHER_FIELDS
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.checks import checked_terms
from hpcbal.paramserver.api.columns import Columns, IntArray
from hpcbal.paramserver.api.update import AppError, Needs, Parameters, Table, Updates

Fact = int | float | str


class SampleSource(Protocol):
    """The return value of the function under `data.dataset`, the same in every process.

    Attributes:
        num_samples: >= 1; ids are 0..num_samples-1.
        facts: what apps need to size their tables: `num_features`, `num_classes`, `num_words`, ...
    """

    @property
    def num_samples(self) -> int: ...

    @property
    def facts(self) -> Mapping[str, Fact]: ...

    def read(self, samples: IntArray) -> Columns:
        """Read samples; one entry per array, axis 0 = samples in the given order.

        Args:
            samples: ids, int64; the engine asks for runs of neighbours.

        Returns: at least one column. All processes get the same names, types and trailing shapes.
        """


class App(ABC):
    """A model that trains on parameter servers.

    Every rank makes its own instance with the same arguments. An instance must not keep anything between
    calls that changes results: parameters belong into tables, what concerns a sample into its state. Random
    numbers come from the generators that are passed in. Then results do not depend on ranks, nor on blocks
    that move. On a machine that several jobs share, `update` may run while `compute` does.

    Args:
        source: the dataset, see `SampleSource`. All its samples, not those of one rank.
        args: the keys under `args` in the YAML file; a subclass names them and checks them.
    """

    def __init__(self, source: SampleSource, **args: Any) -> None:
        self.source = source
        if args:
            raise InputError(
                f"args: got {', '.join(map(repr, args))}, which {type(self).__name__} does not have"
            )

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """The tables, the same on every rank; at least one."""

    def initial(self, table: str, rows: IntArray, rng: np.random.Generator) -> NDArray[Any]:
        """First values of some rows of a table.

        Args:
            table: its name.
            rows: ids of one parameter block's rows, int64. How a table is cut into blocks depends on the
                configuration, so values that must not depend on it may use the ids, but not `rng`.
            rng: seeded by the run's seed, the table and the parameter block.

        Returns: shape (len(rows), num_columns). Default: zeros.
        """
        found = next(each for each in self.tables() if each.name == table)
        return np.zeros((len(rows), found.num_columns), found.dtype)

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        """The app's own state of a data block's samples.

        Args:
            columns: of all samples of the block.
            rng: seeded by the run's seed and the data block.

        Returns: columns with as many samples. Default: none.
        """
        return {}

    def initial_updates(self, batch: Batch) -> Updates | None:
        """Return the updates that a data block pushes once, before the first epoch.

        For instance, counts of its initial state. Default: nothing. Those of several blocks are added up
        before they are sent, unless the app has an `update` of its own.

        Args:
            batch: all samples of one data block. Its state must not be changed: blocks on disk are read anew.
        """
        return None

    def needs(self, batch: Batch) -> Needs:
        """Rows of sparse tables that a batch needs.

        Returns: ids by table, int64, ascending, each once. Default: none.
        """
        return {}

    @abstractmethod
    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        """Compute a turn; may change `batch.state` in place.

        The updates of a step must be the sum of those of its parts, whichever way it is split. In `sync`, all
        parts see the parameters as they were before the step.
        """

    def update(self, table: str, values: NDArray[Any], deltas: NDArray[Any]) -> None:
        """Apply a push to rows of a table, in place; default: add.

        The order of pushes is not defined, so it must not matter.

        Args:
            table: its name.
            values: current values, shape (num_rows of the push, num_columns).
            deltas: pushed values, same shape.
        """
        values += deltas

    @abstractmethod
    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        """Terms of the objective: named sums over the batch's samples, which add up over batches.

        Args:
            batch: all samples of one data block. Its state must not be changed.
            parameters: as for `compute`.
        """

    def parameter_objective(self, table: str, values: NDArray[Any]) -> Mapping[str, float]:
        """Terms of the objective that concern parameters alone, such as regularisers. Default: none.

        Args:
            table: its name.
            values: some rows of it.

        Returns: named sums over these rows. Names differ from those of `objective`.
        """
        return {}

    @abstractmethod
    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        """Metrics of an epoch; the stop rule watches the first unless `stop.monitor` names another.

        Args:
            sums: over all samples and all rows, from `objective` and `parameter_objective`.

        Returns: values by name. Names that records use for something else are refused, see `checked_metrics`.
        """

    def save_keras(self, tables: Mapping[str, NDArray[Any]], path: Path) -> None:
        """Write a trained model to a `.keras` file, which loads without hpcbal. Default: there is none.

        Args:
            tables: all tables, shape (num_rows, num_columns) each.
            path: ends in `.keras`.

        Raises:
            InputError: there is no such model, or Keras could not load it.
            OSError: it cannot be written.
        """
        raise InputError(f"{type(self).__name__} has no Keras model, allowed: a file that ends in .npz")


def checked_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of `App.metrics` as plain numbers.

    Raises:
        AppError: they are no mapping of names to numbers, there are none, or a metric has the name of another
            field of the records in `metrics.jsonl`.
    """
    numbers = checked_terms("metrics", metrics)
    if not numbers:
        raise AppError("metrics: got none, allowed: at least one, which the stop rule can watch")
    taken = [str(name) for name in metrics if name in OTHER_FIELDS]
    if taken:
        raise AppError(
            f"metrics: got {', '.join(map(repr, taken))}, which records use for something else, allowed: any "
            f"name but {', '.join(sorted(OTHER_FIELDS))}"
        )
    return numbers


def has_default_update(app: App) -> bool:
    """Whether pushes are added, so that whole arrays can be."""
    return type(app).update is App.update


def apply_update(
    app: App, table: str, block: NDArray[Any], places: IntArray | None, deltas: NDArray[Any]
) -> None:
    """Apply a push to values that their owner holds.

    Args:
        app, table: see `App.update`.
        block: values, shape (num_rows held, num_columns); changed in place.
        places: which of them the push concerns, each once; None: all.
        deltas: shape (len(places), num_columns).
    """
    if places is None:
        app.update(table, block, deltas)
    elif has_default_update(app):
        block[places] += deltas
    else:
        values = block[places]
        app.update(table, values, deltas)
        block[places] = values


def tables_of(app: App) -> dict[str, Table]:
    """The app's tables by name.

    Raises:
        InputError: there are none, or two have the same name.
    """
    given: object = app.tables()
    if not isinstance(given, Sequence) or not all(isinstance(table, Table) for table in given):
        raise InputError(f"{type(app).__name__}.tables: got {given!r}, allowed: a list of Table")
    tables = {table.name: table for table in given}
    if not tables or len(tables) < len(given):
        raise InputError(
            f"{type(app).__name__}.tables: got {[table.name for table in given]}, "
            "allowed: at least one table, and a name only once"
        )
    return tables
