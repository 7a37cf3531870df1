"""Open and check HDF5 files, and read labels and digests from them."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal import env
from hpcbal.data.dataset import evenly
from hpcbal.errors import DataError

if TYPE_CHECKING:
    import h5py

_ESCAPED = re.compile("%[b%]")
"""In the name of a source: the number of its block, and a per cent sign."""


def check_sources(stored: h5py.Dataset) -> None:
    """Check that every value of a dataset was written, or comes from a source, whatever lies between.

    Raises:
        DataError: if chunks were never written, a source is missing or too small, or no source is mapped to a
            part of the dataset.
    """
    _check(stored, f"{stored.file.filename}:{stored.name}", {})


def _check(stored: h5py.Dataset, where: str, known: dict[tuple[str, str], tuple[int, ...]]) -> None:
    """Args: known: shapes of sources that were checked, by file and name."""
    if stored.external:
        _check_external(stored, where)
    if not stored.is_virtual:
        if not stored.external:
            _check_written(stored, where)
        return
    from h5py import h5s

    covered = h5s.create_simple(stored.shape)
    covered.select_none()
    for part in sorted(_parts(stored), key=lambda part: part.blocks[0]):  # a union in order is fast
        shape = _shape_of(part, stored, where, known)
        if not part.fits(shape):
            needs = f"{part.num_values} values" if part.needs is None else f"{part.needs} or more"
            have = f"which has shape {shape} instead of {needs}"
            raise _lack(where, f"its values are in {part.file}:{part.name}, {have}")
        for start, stride, count, block in part.blocks:
            covered.select_hyperslab(start, count, stride, block, op=h5s.SELECT_OR)
    num_values, num_covered = math.prod(stored.shape), covered.get_select_npoints()
    if num_covered < num_values:
        raise _lack(where, f"only {num_covered} of its {num_values} values are mapped to a source")


def _check_written(stored: h5py.Dataset, where: str) -> None:
    """Check that a program has not ended before it had written all rows; values of zero are written, too.

    Rows of variable length that are not there are empty, so they are found as broken samples.
    """
    import h5py

    if h5py.check_vlen_dtype(stored.dtype) is not None and h5py.check_string_dtype(stored.dtype) is None:
        return
    if stored.chunks is None:
        if stored.size and not stored.id.get_storage_size():
            raise _lack(where, "none of its values was ever written")
        return
    num_chunks = math.prod(-(-n // m) for n, m in zip(stored.shape, stored.chunks, strict=True))
    written = stored.id.get_num_chunks()
    if written < num_chunks:
        rows = stored.chunks[0]
        what = (
            f"only {written} of its {num_chunks} chunks (of {rows} row{'s' * (rows != 1)}) were ever written"
        )
        raise _lack(where, what)


def _lack(where: str, what: str) -> DataError:
    return DataError(
        f"hdf5: {where}: {what}, so HDF5 would read zeros or other fill values; restore what is missing, or "
        "copy all values into one dataset"
    )


_Block = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class _Part:
    """Regular blocks (start, stride, count, block) of a virtual dataset, and the source of their values.

    Attributes:
        needs: the least shape of the source; None: it has as many values as the blocks.
    """

    file: str
    name: str
    blocks: tuple[_Block, ...]
    needs: tuple[int, ...] | None

    @property
    def num_values(self) -> int:
        """Number of values in the blocks."""
        return sum(math.prod(count) * math.prod(block) for _, _, count, block in self.blocks)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a source of this shape has all values."""
        if self.needs is None:
            return math.prod(shape) == self.num_values
        return len(self.needs) == len(shape) and all(n <= m for n, m in zip(self.needs, shape, strict=True))


def _parts(stored: h5py.Dataset) -> Iterator[_Part]:
    from h5py import h5s

    mappings = stored.id.get_create_plist()
    for i in range(mappings.get_virtual_count()):
        file, name = (
            value.decode() if isinstance(value, bytes) else value
            for value in (mappings.get_virtual_filename(i), mappings.get_virtual_dsetname(i))
        )
        target, source = mappings.get_virtual_vspace(i), mappings.get_virtual_srcspace(i)
        blocks = _blocks(target)
        axes = [axis for axis, count in enumerate(blocks[0][2]) if count == h5s.UNLIMITED]
        long = [axis for axis, length in enumerate(blocks[0][3]) if length == h5s.UNLIMITED]
        if not axes and not long:
            yield _Part(_numbered(file, 0), _numbered(name, 0), tuple(blocks), _end(source))
            continue
        ((start, stride, count, block),) = blocks
        axis = (axes or long)[0]
        room = stored.shape[axis] - start[axis]
        if long:
            stride, block = _with(stride, axis, 1), _with(block, axis, 1)
        step, width = stride[axis], block[axis]
        if room <= 0:
            continue
        finite = (start, stride, _with(count, axis, -(-room // step)), block)
        if "%b" in _ESCAPED.findall(file) + _ESCAPED.findall(name):  # one source for each block
            for number in range(finite[2][axis]):
                one = (_with(start, axis, start[axis] + number * step), stride, _with(count, axis, 1), block)
                yield _Part(_numbered(file, number), _numbered(name, number), (one,), _end(source))
        else:
            num_slices = (room // step) * width + min(room % step, width)
            yield _Part(_numbered(file, 0), _numbered(name, 0), (finite,), _end(source, num_slices))


def _blocks(space: Any) -> list[_Block]:
    """Return the selection of a mapping as regular blocks."""
    from h5py import h5s

    ones = (1,) * len(space.shape)
    if space.get_select_type() == h5s.SEL_ALL:
        return [((0,) * len(ones), ones, ones, space.shape)]
    if space.is_regular_hyperslab():
        start, stride, count, block = (tuple(map(int, part)) for part in space.get_regular_hyperslab())
        return [(start, stride, count, block)]
    pairs = space.get_select_hyper_blocklist().tolist()
    return [
        (tuple(low), ones, ones, tuple(b - a + 1 for a, b in zip(low, high, strict=True)))
        for low, high in pairs
    ]


def _end(space: Any, num_slices: int = 0) -> tuple[int, ...] | None:
    """The least shape that holds what a mapping selects; None if it selects all.

    Args:
        num_slices: how many are needed along the axis that has no limit.
    """
    from h5py import h5s

    if space.get_select_type() == h5s.SEL_ALL:
        return None
    blocks = _blocks(space)
    ends = []
    for axis in range(len(space.shape)):
        if len(blocks) == 1 and h5s.UNLIMITED in (blocks[0][2][axis], blocks[0][3][axis]):
            start, stride, _, block = (part[axis] for part in blocks[0])
            stride, block = (1, 1) if block == h5s.UNLIMITED else (stride, block)
            whole, rest = divmod(max(num_slices - 1, 0), block)
            ends.append(start + whole * stride + rest + 1)
        else:
            ends.append(max(s[axis] + (n[axis] - 1) * step[axis] + b[axis] for s, step, n, b in blocks))
    return tuple(ends)


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])


def _numbered(text: str, number: int) -> str:
    return _ESCAPED.sub(lambda found: str(number) if found[0] == "%b" else "%", text)


def _shape_of(
    part: _Part, stored: h5py.Dataset, where: str, known: dict[tuple[str, str], tuple[int, ...]]
) -> tuple[int, ...]:
    """The shape of a source, once all its own values are found, too."""
    import h5py

    own = Path(stored.file.filename)
    found = [own] if part.file == "." else [path for path in _candidates(part.file, own) if path.is_file()]
    reason = "does not exist"
    for path in found:
        key = (str(path.resolve()), part.name.strip("/"))
        if key in known:
            return known[key]
        try:
            file = h5py.File(path, "r", locking=False)
        except (OSError, ValueError) as error:  # HDF5 tries the next one
            reason = f"cannot be opened: {error}"
            continue
        with file:
            source = file.get(part.name)
            if not isinstance(source, h5py.Dataset):
                raise _lack(where, f"its values are in {path}, which has no dataset {part.name!r}")
            known[key] = shape = source.shape
            _check(source, where if path == own else f"{where}, with values in {path}:{part.name}", known)
        return shape
    raise _lack(
        where, f"its values are in {part.file}, which {reason} (beside this file, or in HDF5_VDS_PREFIX)"
    )


def _candidates(name: str, own: Path) -> Iterator[Path]:
    """Where HDF5 looks for the file of a source, in its order.

    Source: H5F_prefix_open_file of HDF5, for datasets that are opened without a prefix of their own.
    """
    if Path(name).is_absolute():
        yield Path(name)
        name = Path(name).name
    prefixes = env.read("HDF5_VDS_PREFIX") or ""
    yield from (Path(prefix) / name for prefix in prefixes.split(":") if prefix)
    if prefixes:
        yield Path(prefixes.replace("${ORIGIN}", str(own.parent))) / name
    yield from (own.parent / name, Path(name), own.resolve().parent / name)


def _check_external(stored: h5py.Dataset, where: str) -> None:
    """Check that raw files hold all bytes; HDF5 reads zeros behind their end."""
    prefix = (env.read("HDF5_EXTFILE_PREFIX") or "").replace(
        "${ORIGIN}", str(Path(stored.file.filename).absolute().parent)
    )
    rest = math.prod(stored.shape) * stored.dtype.itemsize
    for name, offset, size in stored.external:
        if not rest:
            break
        path = Path(prefix) / os.fsdecode(name)
        num_bytes = min(int(size), rest)
        rest -= num_bytes
        if not path.is_file():
            looked = "" if path.is_absolute() else f" (from {Path.cwd()}; HDF5_EXTFILE_PREFIX changes it)"
            raise _lack(where, f"its values are in {path}{looked}, which does not exist")
        if path.stat().st_size < offset + num_bytes:
            raise _lack(
                where,
                f"its values are in {path}, which has {path.stat().st_size} bytes instead of at least "
                f"{offset + num_bytes}",
            )


CACHE_BYTES = 64 * 2**20
"""Chunk cache per process. Samples are read in random order, so a larger cache unpacks fewer chunks."""

DIGEST_ROWS, DIGEST_BYTES = 64, 64 * 2**20
"""Rows and bytes at most that are read when a file is opened, to know it again; at least one row."""

_LOCK_ERRORS = (errno.EAGAIN, errno.ENOLCK, errno.ENOSYS, 524)  # 524: from Lustre and NFS without locks
_LOCK_WORDS = ("unable to lock file", "file locking")


def opened(path: Path, cache_bytes: int = CACHE_BYTES) -> h5py.File:
    """Open a file without locks.

    Raises:
        DataError: if it is no file of HDF5, or is locked.
    """
    import h5py

    if not path.is_file():
        where = f" (from {Path.cwd()})" if not path.is_absolute() else ""
        raise DataError(f"hdf5: {path}{where} is not a file; set data.args.path to an HDF5 file")
    try:
        return h5py.File(path, "r", locking=False, rdcc_nbytes=cache_bytes)
    except (OSError, ValueError) as error:
        hint = ""
        is_lock = any(words in str(error) for words in _LOCK_WORDS)
        if is_lock or getattr(error, "errno", None) in _LOCK_ERRORS:
            hint = "; the file system refuses locks: start again with HDF5_USE_FILE_LOCKING=FALSE"
        raise DataError(f"hdf5: {path} cannot be opened: {error}{hint}") from error


def member_of(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    """The dataset of that name.

    Raises:
        DataError: if there is none, or a part of it is missing.
    """
    import h5py

    member = file.get(name)
    if isinstance(member, h5py.Dataset):
        check_sources(member)
    else:
        link = file.get(name, getlink=True) if member is None else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            place = f"{link.filename}:{link.path}" if isinstance(link, h5py.ExternalLink) else link.path
            raise DataError(
                f"hdf5: {path}: {name!r} is a link to {place}, where no dataset can be read; restore it, or "
                "copy the values into this file"
            )
        found: list[str] = []
        file.visititems(lambda key, item: found.append(key) if isinstance(item, h5py.Dataset) else None)
        raise DataError(f"hdf5: {path}: no dataset {name!r}, there are: {', '.join(found) or 'none'}")
    return member


def only_member(path: Path) -> str:
    """Return the name of the dataset that a file holds for samples: `images`, or the only one.

    Raises:
        DataError: if there are none or several others, or it is no file of HDF5.
    """
    import h5py

    found: list[str] = []
    with opened(path) as file:
        file.visititems(lambda key, item: found.append(key) if isinstance(item, h5py.Dataset) else None)
    if "images" not in found and len(found) != 1:
        raise DataError(
            f"--data: {path} holds the datasets {', '.join(found) or 'none'}; name the one with the samples: "
            '--data-args \'{"images": "NAME"}\''
        )
    return "images" if "images" in found else found[0]


@dataclass(frozen=True)
class _Labels:
    """The class of each row, the number of classes, their names if they have any, and how they were read."""

    numbers: NDArray[np.int64]
    num_classes: int
    names: tuple[str, ...] | None
    remarks: tuple[str, ...]
    are_texts: bool = False


def no_labels(samples: h5py.Dataset) -> _Labels:
    """Return class 0 for each row of a dataset."""
    return _Labels(np.zeros(len(samples) if samples.shape else 0, np.int64), 1, None, ())


def read_labels(stored: h5py.Dataset, where: str) -> _Labels:
    """Read labels in any form that has one meaning: numbers, one-hot rows, booleans or text."""
    values = np.asarray(stored[()])
    given = stored.attrs.get("class_names")
    names = None if given is None else _texts(np.asarray(given))
    remark, are_texts = "", False
    if values.ndim == 2 and 1 in values.shape:
        values = values.reshape(-1)
    if values.ndim == 2 and values.dtype.kind in "biuf" and _is_one_hot(values):
        remark = f"read as one-hot rows: the class is the column of the 1, of {values.shape[1]}"
        num_columns, values = values.shape[1], values.argmax(axis=1)
    else:
        num_columns = 0
    if values.ndim == 1 and values.dtype.kind in "OSU" and len(values):
        texts = _texts(values)
        unknown = sorted(set(texts) - set(names)) if names is not None else []
        if unknown:
            raise DataError(
                f"hdf5: {where}: got the label {unknown[0]!r}, allowed: those in its attribute class_names: "
                f"{', '.join((names or ())[:10])}"
            )
        names = names or tuple(sorted(set(texts)))
        remark = f"read as text: class 0 is {names[0]!r}, class {len(names) - 1} is {names[-1]!r}"
        number_of = {name: number for number, name in enumerate(names)}
        values = np.array([number_of[text] for text in texts], np.int64)
        are_texts = True
    if values.ndim == 1 and values.dtype.kind == "b":
        remark, values = "read as booleans: class 0 is false, class 1 is true", values.astype(np.int64)
    if values.ndim == 1 and values.dtype.kind in "uf":
        exact = values.astype(np.float64)
        is_usable = (np.abs(exact) < 2.0**63) & (exact == np.floor(exact))  # neither inf nor NaN
        if not is_usable.all():
            row = int(is_usable.argmin())
            raise DataError(
                f"hdf5: {where}: row {row} holds {values[row]}, allowed: whole numbers from 0, which are the "
                "numbers of classes; values to predict need a dataset of your own"
            )
    if values.ndim == 1 and values.dtype.kind == "f" and len(values):
        remark, values = "read as whole numbers, though stored as floats", values.astype(np.int64)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        raise DataError(
            f"hdf5: {where}: got shape {stored.shape} of {stored.dtype}, allowed: (num_samples,) integers, "
            "whole numbers, booleans or text, or one-hot rows (num_samples, num_classes)"
        )
    labels = values.astype(np.int64)
    least = max(num_columns, len(names or ()), int(labels.max()) + 1)
    num_classes = int(stored.attrs.get("num_classes", least))
    if labels.min() < 0 or labels.max() >= num_classes:
        remedy = "raise its attribute num_classes, or number the classes from 0 without gaps"
        if labels.min() < 0:
            remedy = "number the classes from 0, and leave out samples without a class"
        raise DataError(
            f"hdf5: {where}: got labels {labels.min()}..{labels.max()}, allowed: 0..{num_classes - 1}; "
            f"{remedy}"
        )
    return _Labels(labels, num_classes, names, (f"{where}: {remark}",) if remark else (), are_texts)


def _is_one_hot(rows: NDArray[Any]) -> bool:
    return bool(np.all((rows == 0) | (rows == 1)) and np.all(rows.sum(axis=1) == 1))


def _texts(values: NDArray[Any]) -> tuple[str, ...]:
    return tuple(
        each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in values.ravel()
    )


def content_of_rows(stored: h5py.Dataset) -> dict[int, bytes]:
    """Digests of the values of some rows."""
    found: dict[int, bytes] = {}
    chunk_bytes = math.prod(stored.chunks or (0,)) * stored.dtype.itemsize
    num_bytes = 0
    for row in evenly(len(stored), DIGEST_ROWS):
        if num_bytes >= DIGEST_BYTES:
            break
        try:
            values = np.ascontiguousarray(stored[row])
        except OSError:  # a damaged row is a broken sample, which a run may have some of
            found[row] = b"cannot be read"
            continue
        found[row] = hashlib.sha256(f"{values.shape}".encode() + values.tobytes()).digest()
        num_bytes += max(values.nbytes, chunk_bytes)
    return found
