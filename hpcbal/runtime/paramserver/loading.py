"""Open the app of a parameter-server job and its dataset; every rank does."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcbal import env
from hpcbal.config import PsJobConfig, load_object
from hpcbal.config.contract import APP, DATASET, Contract, misfits
from hpcbal.errors import HpcbalError, InputError, UserCodeError
from hpcbal.paramserver.contract import (
    App,
    IntArray,
    SampleSource,
    Table,
    checked_columns,
    num_bytes_of,
    tables_of,
)
from hpcbal.processes import leave_if_forked
from hpcbal.user_code import summary


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """What every rank knows of a job.

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
            "hpcbal.paramserver.contract.App"
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
