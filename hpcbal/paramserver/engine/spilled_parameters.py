"""The parameters of one executor on node-local disk: the last resort of a machine that is short of memory.

Values keep their addresses, so whatever is prepared for pulls and pushes stays valid: only their pages go.
They leave as a whole while nobody reads or changes them, and come back before the next pull or push of their
job, or when a request needs them.

Source: [PS] Sec. 4.3.3: once all samples of a job are on disk, its model goes there too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from numpy.typing import NDArray

from hpcbal.paramserver.engine.server import Server
from hpcbal.paramserver.spilling import LocalDisk, SpillFile


class SpilledParameters:
    """Takes the values of a server to disk and back. Callers hold the lock of the machine.

    Args:
        server: whose values they are.
        disk: of the machine.
        make_room: called with bytes that are about to be taken; others give room back.
        aside: gives the lock of the machine back while files are read.
        on_change: called when `Server.num_bytes` has changed.

    Attributes:
        is_coming: whether values are being read.
        used_s: when a subtask of the job last needed them, by `time.monotonic`.
        num_times: how often they have gone to disk.
        most_bytes: the most that has been there.
        stop_s: seconds for which subtasks and requests have waited for them.
    """

    def __init__(
        self,
        server: Server,
        disk: LocalDisk,
        make_room: Callable[[int], bool],
        aside: Callable[[], AbstractContextManager[None]],
        on_change: Callable[[], None],
    ) -> None:
        self._server, self._disk = server, disk
        self._make_room, self._aside, self._on_change = make_room, aside, on_change
        self._file: SpillFile | None = None
        self._regions: dict[tuple[int, int], int] = {}  # by block and array: where it lies in the file
        self._written = -1  # `Server.num_changes` when the values were last written
        self._users = 0
        self._is_read = threading.Event()
        self.is_coming = False
        self.used_s = 0.0
        self.num_times = self.most_bytes = 0
        self.stop_s = 0.0
        server.bring_back = self._come_back_now

    @property
    def num_bytes(self) -> int:
        """Of the values in memory."""
        return self._server.num_bytes

    @property
    def may_leave(self) -> bool:
        """Whether they are here, and nobody uses them."""
        server = self._server
        return not (self._users or self.is_coming or server.is_away) and server.may_put_away

    def leave(self) -> None:
        """Put the values on disk, and give their memory back; only if they `may_leave`.

        Raises:
            SpillError: the disk is full. Then the values stay.
        """
        assert self.may_leave, "parameters leave that somebody uses"
        before_bytes = self._server.num_bytes
        if self._file is None:
            self._file = self._disk.open()
        is_written = self._written == self._server.num_changes
        for block, held in self._server.held():
            for index, array in enumerate(held.arrays()):
                if index or not is_written:
                    self._write(block, index, array)
        self._written = self._server.num_changes
        for _, held in self._server.held():
            held.put_away()
        self._server.is_away = True
        self.num_times += 1
        self.most_bytes = max(self.most_bytes, before_bytes)
        self._on_change()

    def _write(self, block: int, index: int, array: NDArray[Any]) -> None:
        assert self._file is not None
        if (block, index) not in self._regions:
            self._regions[block, index] = self._file.reserve(array.nbytes)
        self._file.write(array, self._regions[block, index])
        self._file.pace_writing(array.nbytes)

    @contextmanager
    def using(self) -> Iterator[None]:
        """A subtask of the job needs the values: they are here, and stay until it is over."""
        self._users += 1
        try:
            self._come_back(waits=True)
            yield
        finally:
            self._users -= 1
            self.used_s = time.monotonic()

    def _come_back_now(self) -> None:
        """A request needs the values. The machine waits for them, but not as long as for an emulated disk."""
        self._come_back(waits=False)

    def _come_back(self, *, waits: bool) -> None:
        """Read the values back, if they are away.

        Args:
            waits: whether to give the lock back meanwhile, and to take as long as an emulated disk. Otherwise
                whoever reads next waits for that.
        """
        began_s = time.monotonic()
        if self.is_coming:
            self._is_read.wait()  # by the thread of the job, which then waits for the lock
        elif self._server.is_away:
            self.is_coming = True  # so that making room does not send them away again
            self._is_read.clear()
            try:
                self._read_all(waits)
            finally:
                self.is_coming = False
        else:
            return
        self.stop_s += time.monotonic() - began_s

    def _read_all(self, waits: bool) -> None:
        assert self._file is not None
        self._make_room(self._server.whole_bytes)
        for _, held in self._server.held():
            held.take_back()
        self._server.is_away = False
        self._on_change()
        num_bytes = sum(array.nbytes for _, held in self._server.held() for array in held.arrays())
        with ExitStack() as stack:
            if waits:
                stack.enter_context(self._aside())
                stack.enter_context(self._file.pace_reading(num_bytes))
            else:
                self._file.pace_writing(num_bytes)
            try:
                for block, held in self._server.held():
                    for index, array in enumerate(held.arrays()):
                        self._file.read(array, self._regions[block, index])
            finally:
                self._is_read.set()

    def close(self) -> None:
        """Give the space on disk back."""
        if self._file is not None:
            self._file.close()
