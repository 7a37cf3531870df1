"""Check that all values of HDF5 datasets are somewhere: HDF5 reads fill values for what lacks."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal import env
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
