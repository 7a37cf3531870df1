"""Save and load a parameter-server job: a file per executor, and a manifest that makes them a checkpoint.

Every executor writes the blocks that it owns to `checkpoint-K/executor-RRR/checkpoint.h5`. When all have
written, the master replaces `checkpoint.json`, which names K and the executor that holds each block. A kill
at any moment leaves the old checkpoint or the new one. A later start may have other executors: each of them
reads the blocks that it owns then.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hpcbal.checkpoint.reader import read_groups
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import CURRENT, write_checkpoint
from hpcbal.errors import CheckpointError
from hpcbal.events.history import EpochRecord, Position
from hpcbal.paramserver.master.messages import What
from hpcbal.safe_text import shortened
from hpcbal.telemetry.files.atomic_file import read_text, write_json_atomic

JOBS_FOLDER = "jobs"
"""Name of the folder of jobs in the output directory."""

MANIFEST = "checkpoint.json"
SCHEMA = 1
PARAMETERS, DATA = "parameters", "data"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class SavedJob:
    """A checkpoint, without its arrays.

    Attributes:
        number: K, which counts up from 1.
        fingerprint: fingerprint of the data and the tables; the job must not continue with others.
        cut: number of data blocks, as a list of one, and of the parameter blocks of each table.
        history: one record per completed epoch, oldest first.
        holder: for `parameters` and `data`, the rank whose file holds each block, in order of block.
    """

    number: int
    fingerprint: str
    cut: Mapping[str, Sequence[int]]
    history: tuple[EpochRecord, ...]
    holder: Mapping[str, tuple[int, ...]]


def folder_of(job: Path, number: int) -> Path:
    """The folder of one checkpoint's files."""
    return job / f"checkpoint-{number}"


def write_blocks(job: Path, number: int, rank: int, blocks: Mapping[str, Mapping[int, Arrays]]) -> None:
    """Write what one executor owns.

    Args:
        job: directory of the job.
        number: number of the checkpoint.
        rank: the executor.
        blocks: for `parameters` and `data`, the arrays of each block by name.

    Raises:
        OutputError: if the file cannot be written.
    """
    arrays = {
        f"{what}/{block}/{name}": array
        for what, owned in blocks.items()
        for block, named in owned.items()
        for name, array in named.items()
    }
    state = TrainingState(f"executor-{rank:03d}", 0, Position(0, 0), arrays=arrays)
    write_checkpoint(folder_of(job, number) / f"executor-{rank:03d}", state, num_parents=3)


def write_manifest(job: Path, saved: SavedJob) -> None:
    """Make the files of a checkpoint the job's checkpoint, and remove those of older ones.

    Raises:
        OutputError: if the manifest cannot be written.
    """
    content = {
        "schema": SCHEMA,
        "number": saved.number,
        "fingerprint": saved.fingerprint,
        "cut": {what: list(counts) for what, counts in saved.cut.items()},
        "history": [record.to_json() for record in saved.history],
        "holder": {what: list(ranks) for what, ranks in saved.holder.items()},
    }
    write_json_atomic(job / MANIFEST, content, durable=True)
    for folder in job.glob("checkpoint-*"):
        if folder != folder_of(job, saved.number):
            shutil.rmtree(folder, ignore_errors=True)


def read_saved(job: Path) -> SavedJob | None:
    """The job's checkpoint; None if there is none.

    Raises:
        CheckpointError: if the manifest exists but cannot be used.
    """
    path = job / MANIFEST
    try:
        content = json.loads(read_text(path))
        if content["schema"] != SCHEMA:
            raise CheckpointError(
                f"{path}: has schema {content['schema']}, this hpcbal reads {SCHEMA}; continue with the "
                "hpcbal that wrote it"
            )
        saved = SavedJob(
            number=int(content["number"]),
            fingerprint=str(content["fingerprint"]),
            cut={what: tuple(map(int, content["cut"][what])) for what in (PARAMETERS, DATA)},
            history=tuple(EpochRecord.from_json(each) for each in content["history"]),
            holder={what: tuple(map(int, content["holder"][what])) for what in (PARAMETERS, DATA)},
        )
        _check_holders(saved)
        return saved
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or shortened(repr(error))
        raise CheckpointError(
            f"{path}: cannot be used ({reason}); restore it, or remove it to train from the beginning"
        ) from error


def read_blocks(
    job: Path, saved: SavedJob, what: str, blocks: Iterable[int]
) -> dict[int, dict[str, NDArray[Any]]]:
    """Read blocks of a checkpoint, whoever wrote them.

    Args:
        job: directory of the job.
        saved: the checkpoint.
        what: `parameters` or `data`.
        blocks: the blocks that this executor owns now.

    Returns:
        The arrays of each block, by name.

    Raises:
        CheckpointError: if a file is missing or damaged.
    """
    by_holder: dict[int, list[int]] = {}
    for block in blocks:
        by_holder.setdefault(saved.holder[what][block], []).append(block)
    found: dict[int, dict[str, NDArray[Any]]] = {}
    for rank, wanted in by_holder.items():
        path = folder_of(job, saved.number) / f"executor-{rank:03d}" / CURRENT
        try:
            groups = read_groups(path, [f"{what}/{block}" for block in wanted])
        except (CheckpointError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise CheckpointError(
                f"{path}: cannot be used ({reason}); restore it, or remove {job} to train from the beginning"
            ) from error
        found |= {block: groups[f"{what}/{block}"] for block in wanted}
    return found


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Where an executor saves and loads blocks: the files of the run.

    Attributes:
        job: directory of the job.
        rank: of the executor.
        saved: the checkpoint from which the job goes on; None: it starts.
    """

    job: Path
    rank: int
    saved: SavedJob | None

    def save(self, number: int, blocks: Mapping[What, Mapping[int, Arrays]]) -> None:
        """Write this executor's part of checkpoint `number`."""
        write_blocks(self.job, number, self.rank, {PARAMETERS: blocks["parameters"], DATA: blocks["data"]})

    def load(self, number: int, what: What, blocks: Iterable[int]) -> Mapping[int, Arrays]:
        """Read blocks of checkpoint `number`, whoever saved them."""
        assert self.saved is not None
        assert self.saved.number == number
        return read_blocks(self.job, self.saved, what, blocks)


def _check_holders(saved: SavedJob) -> None:
    """Check that the manifest names a holder for every block.

    Raises:
        ValueError: it does not.
    """
    for what, counts in saved.cut.items():
        if len(saved.holder[what]) != sum(counts) or not counts or min(counts) < 1:
            raise ValueError(f"{what}: cut into {list(counts)}, but {len(saved.holder[what])} have a holder")
