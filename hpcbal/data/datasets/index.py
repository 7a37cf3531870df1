"""Indexes: arrays that take long to find in the data, kept in a file until the data change."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.datasets.arguments import path_of
from hpcbal.errors import DataError

log = logging.getLogger(__name__)

FORMAT = 4
"""Of the file of an index, and of what datasets look for; another one has another name."""

_IDENTITY = "identity"
"""The array that identifies the data of an index: a digest of 32 bytes."""

Arrays = Mapping[str, NDArray[Any]]


class Names:
    """Many names in two arrays, because an object for each of millions takes memory and time.

    Attributes:
        joined: all names one after the other, encoded as file names are.
        ends: where each of them ends in `joined`, shape (num_names,).
    """

    def __init__(self, joined: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.joined, self.ends = joined, ends

    @classmethod
    def of(cls, groups: Iterable[Iterable[str]]) -> Names:
        """Put names together, one group after the other."""
        joined, lengths = [], [np.zeros(0, np.int64)]
        for group in groups:
            encoded = [os.fsencode(name) for name in group]
            joined.append(b"".join(encoded))
            lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        return cls(np.frombuffer(b"".join(joined), np.uint8), np.cumsum(np.concatenate(lengths)))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> str:
        start = int(self.ends[number - 1]) if number else 0
        return os.fsdecode(self.joined[start : self.ends[number]].tobytes())


def index_of(
    dataset: str,
    given: str | None,
    folder: Path,
    question: object,
    state: object,
    find: Callable[[], Arrays],
    may_keep: Callable[[Arrays], bool] = lambda _: True,
) -> tuple[Arrays, tuple[str, ...]]:
    """Return an index: from its file if that is of the same data, otherwise as it is found now.

    Args:
        dataset: name of the dataset, for the name of the file and for messages.
        given: `data.args.index`: the file, which is replaced only if it is an index; None: a hidden one in
            `folder`.
        folder: where the data are.
        question: what is looked for, in a form whose `repr` is the same in every process.
        state: what changes if the data change, likewise.
        find: looks through the data; its errors pass.
        may_keep: whether what `find` has found is worth a file, and cannot have changed since.

    Returns: the arrays that `find` makes; sentences for warnings, if the file was damaged or cannot be
        written.

    Raises:
        DataError: if `given` is no path, or another file than an index.
    """
    asked = hashlib.sha256(repr((FORMAT, dataset, question)).encode(errors="surrogateescape"))
    name = f".hpcbal-index-{asked.hexdigest()[:16]}.npz"
    file = folder / name if given is None else path_of(dataset, "index", given)
    asked.update(repr(state).encode(errors="surrogateescape"))
    identity = np.frombuffer(asked.digest(), np.uint8)
    is_ours, why, remark = given is None, "is no index", ""
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            stored = arrays[_IDENTITY]
            is_ours = is_ours or (stored.dtype, stored.shape) == (identity.dtype, identity.shape)
            if np.array_equal(stored, identity):
                return {each: arrays[each] for each in arrays.files if each != _IDENTITY}, ()
    except FileNotFoundError:
        is_ours = True  # nobody has asked before
    except Exception as error:  # NumPy and zipfile raise many types on damaged files
        strerror = error.strerror if isinstance(error, OSError) else None
        why = f"cannot be read ({strerror})" if strerror else "is no index, or is damaged"
        remark = (
            f"{dataset}: the index {file} could not be read ({strerror or 'it is damaged'}), so it was made "
            "again"
        )
    if not is_ours:
        raise DataError(
            f"{dataset}: data.args.index names {file}, which {why}, so it was left as it is; name a file "
            "that does not exist yet, or remove this one if nobody needs it"
        )
    log.info("%s: looking through all data in %s for an index", dataset, folder)
    found = find()
    if may_keep(found):
        remark = _keep(dataset, file, {**found, _IDENTITY: identity}) or remark
    return found, (remark,) if remark else ()


def _keep(dataset: str, file: Path, arrays: Arrays) -> str:
    """Write an index, so that other processes see all of it or nothing; return why that is not possible."""
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=file.name, delete=False) as temporary:
            try:
                np.savez(temporary, **arrays)  # type: ignore[arg-type]  # none of them is `allow_pickle`
                temporary.flush()
                os.chmod(temporary.name, 0o644)
                os.replace(temporary.name, file)
            except BaseException:
                os.unlink(temporary.name)
                raise
    except OSError as error:
        return (
            f"{dataset}: the index {file} cannot be written ({error.strerror}), so each start looks through "
            "all the data again; set data.args.index to a file that can be written"
        )
    return ""
