"""Read and export the parameters of a parameter-server job from its last checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.config import PsJobConfig
from hpcbal.errors import InputError, OutputError
from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import DataBlocks
from hpcbal.paramserver.api.columns import Column, Ragged
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.loading import VALUES, JobSetup, saved_data
from hpcbal.runtime.jobs.checkpoint import DATA, JOBS_FOLDER, PARAMETERS, read_blocks, read_saved
from hpcbal.runtime.jobs.loading import Cut, check_saved, load_job
from hpcbal.telemetry.files.atomic_file import remove_quietly
from hpcbal.telemetry.files.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class TrainedJob:
    """Parameters and states of a job.

    Attributes:
        app: as the job has made it.
        epochs: number of completed epochs.
        tables: values by table, shape (num_rows, num_columns).
        states: the app's state of all samples, in their order, by name.
    """

    app: App
    epochs: int
    tables: Mapping[str, NDArray[Any]]
    states: Mapping[str, Column]


def load_trained(config: PsJobConfig, name: str, seed: int, directory: Path) -> TrainedJob:
    """Read the last checkpoint of a job, whoever wrote its parts. Opens the app and its dataset.

    Args:
        config: of the job.
        name: of the job.
        seed: of the job.
        directory: the run's output directory.

    Raises:
        InputError: there is no checkpoint yet, or app or data have changed since.
        CheckpointError: the checkpoint is damaged.
        UserCodeError: the app or the dataset raises.
    """
    folder = RunDirectory(directory, JOBS_FOLDER).job(name)
    saved = read_saved(folder)
    if saved is None:
        raise InputError(
            f"{folder}: no checkpoint yet; the job writes one every checkpoint.interval_s, and at its end"
        )
    loaded = load_job(config)
    check_saved(saved, loaded.fingerprint(seed), folder)
    cut = Cut.of_saved(saved)
    layout = Layout(tuple(loaded.tables.values()), cut.parameters)
    data = DataBlocks(loaded.num_samples, cut.data)
    job = JobSetup(loaded.app, seed, config.mini_batch, data, layout, staleness=config.staleness)
    tables = {
        name: np.empty((table.num_rows, table.num_columns), table.dtype)
        for name, table in loaded.tables.items()
    }
    for block, arrays in read_blocks(folder, saved, PARAMETERS, range(layout.num_blocks)).items():
        tables[layout.table_of(block).name][layout.rows_of(block)] = arrays[VALUES]
    found = read_blocks(folder, saved, DATA, range(cut.data))
    blocks = [saved_data(job, block, found[block])[0].state for block in range(cut.data)]
    states = {name: _joined([state[name] for state in blocks]) for name in blocks[0]}
    return TrainedJob(loaded.app, saved.history[-1].epoch if saved.history else 0, tables, states)


def export_job(
    config: PsJobConfig, name: str, seed: int, directory: Path, to: Path, *, force: bool
) -> TrainedJob:
    """Write what a job has trained: all tables and states as `.npz`, or a Keras model as `.keras`.

    An `.npz` file has the array `tables/NAME` for each table and `states/NAME` for each state. Lists of
    unequal length are `states/NAME/values` and `states/NAME/offsets`.

    Args:
        config, name, seed: of the job.
        directory: the run's output directory.
        to: the file.
        force: whether to replace one that is there.

    Returns: what was written.

    Raises:
        InputError: see `load_trained`; or the file cannot be of this kind, or is there.
        OutputError: it cannot be written.
    """
    kind = to.suffix.lower()
    if kind not in (".npz", ".keras"):
        raise InputError(f"--to: got {to}, allowed: a file that ends in .npz, or of a Keras model in .keras")
    if not to.parent.is_dir():
        raise InputError(f"--to: {to.parent} is not a directory; make it first, or choose another place")
    if os.path.lexists(to) and (to.is_dir() or not force):
        raise InputError(f"--to: {to} exists; choose another name, or replace it with --force")
    trained = load_trained(config, name, seed, directory)
    aside = to.with_name(f".{to.stem}.{os.getpid()}.tmp{kind}")
    try:
        if kind == ".keras":
            trained.app.save_keras(trained.tables, aside)
        else:
            np.savez(aside, **_arrays(trained))
        os.replace(aside, to)
    except OSError as error:
        raise OutputError(
            f"{to}: cannot be written: {error.strerror or error}; free space, or choose another place"
        ) from error
    finally:
        remove_quietly(aside)
    return trained


def _arrays(trained: TrainedJob) -> dict[str, NDArray[Any]]:
    arrays = {f"tables/{name}": values for name, values in trained.tables.items()}
    for name, state in trained.states.items():
        if isinstance(state, Ragged):
            arrays[f"states/{name}/values"], arrays[f"states/{name}/offsets"] = state.values, state.offsets
        else:
            arrays[f"states/{name}"] = state
    return arrays


def _joined(parts: list[Column]) -> Column:
    """The same column of neighbouring data blocks, as one."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if not ragged:
        return np.concatenate([np.asarray(part) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in ragged]))])
    return Ragged(np.concatenate([part.values for part in ragged]), offsets)
