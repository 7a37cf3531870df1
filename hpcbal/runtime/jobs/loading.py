"""Open the app of a parameter-server job and its dataset; every rank does."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbal import env
from hpcbal.config import ParamServerConfig, PsJobConfig, SharedJobConfig, load_object
from hpcbal.config.callables import APP, DATASET, Contract, misfits
from hpcbal.errors import HpcbalError, InputError, OutputError, UserCodeError
from hpcbal.paramserver.api.app import App, SampleSource, tables_of
from hpcbal.paramserver.api.checks import checked_columns
from hpcbal.paramserver.api.columns import IntArray, num_bytes_of
from hpcbal.paramserver.api.update import Table
from hpcbal.processes import leave_if_forked
from hpcbal.runtime.jobs.checkpoint import SavedJob
from hpcbal.user_code import summary

JobConfig = ParamServerConfig | SharedJobConfig
"""The configuration of a job that has all ranks for itself, or of one of many."""


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job as every rank knows it.

    Attributes:
        app: this rank's instance.
        source: the dataset.
        tables: the app's tables by name.
    """

    app: App
    source: SampleSource
    tables: Mapping[str, Table]

    @property
    def num_samples(self) -> int:
        return self.source.num_samples

    @property
    def parameter_bytes(self) -> int:
        return sum(table.num_bytes for table in self.tables.values())

    @property
    def dense_bytes(self) -> int:
        return sum(table.num_bytes for table in self.tables.values() if table.access == "dense")

    def data_bytes(self, some: IntArray) -> int:
        """Bytes of all samples, by what some of them take.

        Raises:
            UserCodeError: if the dataset cannot read them.
            AppError: if it returns something else.
        """
        columns = _checked("data.dataset: source.read", lambda: self.source.read(some))
        checked_columns("data.dataset: source.read", columns, len(some), least=1)
        return num_bytes_of(columns) * self.num_samples // len(some)

    def fingerprint(self, seed: int) -> str:
        """A digest of what a checkpoint depends on: the size of the data, facts about it, and the tables."""
        tables = [
            (table.name, table.num_rows, table.num_columns, table.dtype, table.access)
            for table in self.tables.values()
        ]
        known = [seed, self.num_samples, sorted(self.source.facts.items()), tables]
        return hashlib.sha256(json.dumps(known, default=str).encode()).hexdigest()


def load_job(config: PsJobConfig) -> LoadedJob:
    """Open the dataset and make the app.

    Raises:
        InputError: if nothing exists at an import path, arguments are wrong, or a result is of a wrong type.
        UserCodeError: if their code raises.
    """
    args = env.expanded(config.data.args, "data.args")
    source = _call("data.dataset", config.data.dataset, DATASET, (), args)
    _check_source(source, config.data.dataset)
    app = _call("app", config.app, APP, (source,), env.expanded(config.args, "args"))
    if not isinstance(app, App):
        raise InputError(
            f"app {config.app}: got an object of type {type(app).__name__}, allowed: a subclass of "
            "hpcbal.paramserver.api.App"
        )
    return LoadedJob(app, source, _checked(f"app {config.app}: tables", lambda: tables_of(app)))


def _call(key: str, path: str, contract: Contract, passed: tuple[Any, ...], args: Mapping[str, Any]) -> Any:
    factory = load_object(path)
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some callables written in C have no signature
        signature = None
    found = [] if signature is None else misfits(path, signature, args, contract)
    if found:
        raise InputError(f"{key} {path}: {'; '.join(misfit.text for misfit in found)}")
    return _checked(f"{key} {path}: cannot be opened", lambda: factory(*passed, **args))


def _checked(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (HpcbalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything
        raise UserCodeError(f"{what}: {summary(error)}") from error
    finally:
        leave_if_forked("the app")


def _check_source(source: Any, path: str) -> None:
    count = getattr(source, "num_samples", None)
    if not isinstance(count, int) or count < 1:
        raise InputError(f"data.dataset {path}: num_samples is {count!r}, allowed: a whole number, 1 or more")
    if not callable(getattr(source, "read", None)):
        raise InputError(f"data.dataset {path}: has no method read(samples)")
    if not isinstance(getattr(source, "facts", None), Mapping):
        raise InputError(f"data.dataset {path}: facts is not a mapping of names to numbers or text")


BLOCKS_PER_EXECUTOR = 8
"""Blocks of each sort for each executor of the first start: shares can be even to about an eighth."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Numbers of blocks.

    Attributes:
        data: blocks of samples, >= 1.
        parameters: blocks of each table, in the order of the app's tables; each >= 1.
    """

    data: int
    parameters: tuple[int, ...]

    @classmethod
    def of_saved(cls, saved: SavedJob) -> Cut:
        """The cut of a job with a checkpoint."""
        return cls(int(saved.cut["data"][0]), tuple(map(int, saved.cut["parameters"])))

    def plain(self) -> dict[str, list[int]]:
        """For a checkpoint."""
        return {"data": [self.data], "parameters": list(self.parameters)}


def first_cut(config: PsJobConfig, loaded: LoadedJob, num_executors: int) -> Cut:
    """The cut of a job that starts.

    Raises:
        InputError: if the file asks for more blocks than there are samples or rows, or fewer than tables.
    """
    most = BLOCKS_PER_EXECUTOR * num_executors
    data = config.blocks.data
    if data != "auto" and data > loaded.num_samples:
        raise InputError(
            f"blocks.data: got {data}, allowed: auto, or at most the number of samples ({loaded.num_samples})"
        )
    num_data = min(most, loaded.num_samples) if data == "auto" else data
    tables = list(loaded.tables.values())
    parameters, num_rows = config.blocks.parameters, sum(table.num_rows for table in tables)
    if parameters != "auto" and not len(tables) <= parameters <= num_rows:
        raise InputError(
            f"blocks.parameters: got {parameters}, allowed: auto, or {len(tables)} (the app's tables) to "
            f"{num_rows} (their rows)"
        )
    total = max(most, len(tables)) if parameters == "auto" else parameters
    return Cut(num_data, shares_of_tables(tables, min(total, num_rows)))


def shares_of_tables(tables: Sequence[Table], num_blocks: int) -> tuple[int, ...]:
    """Blocks for tables in proportion to their bytes, at least one each and no more than rows.

    Args:
        tables: at least one.
        num_blocks: in total, from the number of tables to that of rows.
    """
    shares = [1] * len(tables)
    for _ in range(num_blocks - len(tables)):
        open_tables = [i for i, table in enumerate(tables) if shares[i] < table.num_rows]
        shares[max(open_tables, key=lambda i: (tables[i].num_bytes / shares[i], -i))] += 1
    return tuple(shares)


def check_saved(saved: SavedJob, fingerprint: str, job: Path) -> None:
    """Raise OutputError if a checkpoint is of other data or tables."""
    if saved.fingerprint != fingerprint:
        raise OutputError(
            f"{job}: the checkpoint is of other data, or of other tables; restore them, or "
            "choose another directory with --output"
        )
