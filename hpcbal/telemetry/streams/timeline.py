"""timeline.json.gz: what every rank did when, in Chrome's trace format; a valid file after every write.

The file is one gzip member with one JSON array. New events overwrite its last twelve bytes (the end of the
array, checksum and length) and are followed by a new end, in one write. So a killed run leaves a file that
`gzip -t`, `json.loads`, Perfetto and Chrome can read to the end. (If it is killed during that write, the file
may be damaged at a page boundary; `read_timeline` and the next start keep everything before that.) Readers
reject or ignore a truncated member, and some read only the first member, so neither a stream without an end
nor one member per flush would work.

Sources: RFC 1951 (a deflate stream may be continued after a sync flush), RFC 1952 (gzip); for the events the
"Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcbal.errors import OutputError
from hpcbal.telemetry.files.atomic_file import own_file, read_file, write_atomic
from hpcbal.telemetry.streams.slices import DETAIL, MARK, Slice

log = logging.getLogger(__name__)

FIRST_PID = 100_000
"""Process id of the first node; larger than all thread ids, because viewers confuse the two kinds of ids."""

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no name, no time, unknown system
_END = b"\n]\n"
_FLUSH_BYTES = 1 << 16


class TimelineFile:
    """Appends slices of all ranks; only rank 0 writes.

    If the file cannot be written, a warning is logged and the timeline ends; the run is not affected.

    Args:
        path: path of the file; an existing file is continued, without its damaged part.
        max_bytes: largest size of the file; 0 disables it. Slices of DETAIL are dropped once half of this
            size is used.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._descriptor: int | None = None
        self._logged: set[str] = set()
        self._compressor = _compressor()
        self._checksum = 0  # like _length, of the array without its end
        self._length = 0
        self._end = 0  # position where the compressed array ends and its tail begins
        if max_bytes <= 0:
            return
        try:
            content = _salvage(self._path)
            self._start(content)
        except (OSError, OutputError) as error:
            self._give_up(error)

    @property
    def is_open(self) -> bool:
        """Whether slices are still accepted."""
        return self._descriptor is not None

    def name_track(self, rank: int, node: int, node_name: str, role: str) -> None:
        """Set the name and the node of the track of `rank`; call this before adding its slices."""
        about_node: dict[str, object] = {"ph": "M", "name": "process_name", "pid": FIRST_PID + node, "tid": 0}
        about_rank = {"ph": "M", "name": "thread_name", "pid": FIRST_PID + node, "tid": rank + 1}
        self._put({**about_node, "args": {"name": node_name}})
        self._put({**about_rank, "args": {"name": f"rank {rank}: {role}"}})

    def add(self, rank: int, node: int, slices: Iterable[Slice]) -> None:
        """Add slices of one rank; they are in the file after the next flush."""
        if not self.is_open:
            return
        for one in slices:
            if one.kind in DETAIL and self._size > self._max_bytes // 2:
                self._log_once(
                    "half of timeline.max_bytes is used; the timeline no longer shows individual steps"
                )
                continue
            lasts = {"ph": "X", "dur": one.end_us - one.start_us}
            self._put(
                {
                    **({"ph": "i", "s": "t"} if one.kind == MARK else lasts),
                    "name": one.name or one.kind,
                    "cat": one.kind,
                    "pid": FIRST_PID + node,
                    "tid": rank + 1,
                    "ts": one.start_us,
                    **({"args": dict(one.facts)} if one.facts else {}),
                }
            )
        if self._waiting_bytes > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the added slices."""
        if self._descriptor is None or not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        packed = self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        if self._size + len(packed) > self._max_bytes:
            self._log_once("timeline.max_bytes is reached; the timeline ends here")
            self.close()
            return
        self._checksum = zlib.crc32(data, self._checksum)
        self._length += len(data)
        try:
            _write_at(self._descriptor, packed + self._tail(), self._end)
        except OSError as error:
            self._give_up(error)
            return
        self._end += len(packed)

    def close(self) -> None:
        """Flush and close; later slices are dropped."""
        if self._descriptor is None:
            return
        self.flush()
        if self._descriptor is not None:  # the flush has not given up
            os.close(self._descriptor)
        self._descriptor = None
        self._waiting = []

    # ---- parts ---------------------------------------------------------------------------------

    @property
    def _size(self) -> int:
        return self._end + len(_tail(0, 0))

    def _start(self, content: bytes) -> None:
        """Write `content` (an array without its end) to the file, so that it can be continued."""
        self._checksum = zlib.crc32(content)
        self._length = len(content)
        packed = self._compressor.compress(content) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._end = len(_HEADER) + len(packed)
        write_atomic(self._path, _HEADER + packed + self._tail())
        self._descriptor = own_file(os.fspath(self._path), os.O_WRONLY)

    def _tail(self) -> bytes:
        return _tail(zlib.crc32(_END, self._checksum), self._length + len(_END))

    def _put(self, event: dict[str, object]) -> None:
        if not self.is_open:
            return
        line = b",\n" + json.dumps(event, separators=(",", ":")).encode()
        self._waiting.append(line)
        self._waiting_bytes += len(line)

    def _log_once(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            log.info("%s: %s", self._path, message)

    def _give_up(self, error: Exception) -> None:
        log.warning("%s: the timeline ends here, because it cannot be written: %s", self._path, error)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def read_timeline(path: str | os.PathLike[str]) -> Sequence[dict[str, object]]:
    """All events of a timeline; of a damaged one, those before the damage; none if there is no file."""
    events: list[dict[str, object]] = json.loads(_salvage(Path(path)) + _END)
    return events[1:]  # the first one only identifies the file


def _compressor() -> zlib._Compress:
    return zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)  # without zlib's own header and trailer


def _tail(checksum: int, length: int) -> bytes:
    """The compressed end of the array, and the end of the gzip member."""
    packer = _compressor()
    end = packer.compress(_END) + packer.flush()
    return end + checksum.to_bytes(4, "little") + (length & 0xFFFFFFFF).to_bytes(4, "little")


def _salvage(path: Path) -> bytes:
    """The array of an earlier start without its end; a new array if there is none to continue."""
    first = json.dumps({"ph": "M", "name": "hpcbal", "pid": FIRST_PID, "args": {"timeline": 1}})
    new = b"[\n" + first.encode()
    try:
        data = read_file(path)
    except FileNotFoundError:
        return new
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    parts = []
    try:
        for start in range(0, len(data), 4096):  # in pieces, to get everything before the damage
            parts.append(unpacker.decompress(data[start : start + 4096]))
    except zlib.error:
        log.warning("%s: damaged; the part before the damage is kept", path)
    content = b"".join(parts)
    if content.endswith(_END):
        return content.removesuffix(_END)
    whole = content.rpartition(b",\n")[0]
    return whole if whole.startswith(new) else new


def _write_at(descriptor: int, data: bytes, place: int) -> None:
    """Write all of `data` at `place`, with one call unless the disk is full."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written
