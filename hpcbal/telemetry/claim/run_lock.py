"""Prevent two runs from using one output directory, without file locks.

Many parallel file systems have no `flock`, or one that does not work. So the lock is a file, `run.lock`,
created with O_EXCL. It identifies the host and the process, and holds a count that its owner increases every
few seconds. A process that cannot see the owner, because it is on another host or in another container,
checks whether the count still increases. Clocks of different hosts are never compared.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcbal.errors import OutputError
from hpcbal.processes import say
from hpcbal.telemetry.files.atomic_file import output_error, own_file, read_file, remove_quietly
from hpcbal.telemetry.files.json_lines import utc_text
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.resources.processes import identity_of, is_running

log = logging.getLogger(__name__)


class RunLock:
    """Holds `run.lock` of a directory from construction to `release`; a thread sends its heartbeats.

    The lock of a killed run is taken over: at once if its process was in this one's process namespace and is
    gone, otherwise after `stale_s` without a heartbeat.

    Args:
        directory: an existing directory.
        beat_s: seconds between two heartbeats.
        stale_s: seconds without a heartbeat after which a lock is stale whose process cannot be seen; many
            times `beat_s`.
        host: this host's name, for tests.

    Raises:
        OutputError: if another run holds the lock (the message names it), or the file cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        beat_s: float = 5.0,
        stale_s: float = 40.0,
        host: str | None = None,
    ) -> None:
        self._path = RunDirectory(Path(directory)).lock
        self._beat_s = beat_s
        self._stale_s = stale_s
        self._host = host or socket.gethostname()
        self._identity = identity_of(os.getpid())
        self._token = uuid.uuid4().hex
        self._beat = 0
        self._lost: str | None = None
        self._released = threading.Event()
        self._acquire()
        self._thread = threading.Thread(target=self._keep_alive, name="run-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that no other run has taken over the directory, while this process was suspended.

        Raises:
            OutputError: if another run has; then nothing more may be written.
        """
        if self._lost is not None:
            raise OutputError(self._lost)

    def release(self) -> None:
        """Release the lock; may be called again."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join()
        owner = _read(self._path)
        if owner is not None and owner.get("token") == self._token:
            with contextlib.suppress(OutputError):
                self._remove(owner)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _acquire(self) -> None:
        while not self._create():
            owner = _read(self._path)
            if owner is None:
                continue
            self._refuse_if_alive(owner)
            log.info("taking over %s, left behind by %s", self._path, _name(owner))
            self._remove(owner)

    def _create(self) -> bool:
        """Create the lock; False if it exists already."""
        try:
            file = open(self._path, "x", encoding="utf-8")  # noqa: SIM115 - closed below
        except FileExistsError as error:
            if self._path.is_symlink():  # never followed; one that leads nowhere would look like no lock
                raise output_error(self._path, OSError(errno.ELOOP, os.strerror(errno.ELOOP))) from error
            return False
        except OSError as error:
            raise output_error(self._path, error) from error
        try:
            with file:
                file.write(self._content())
        except OSError as error:
            remove_quietly(self._path)
            raise output_error(self._path, error) from error
        return True

    def _refuse_if_alive(self, owner: dict[str, Any]) -> None:
        """Raise if `owner` is alive; otherwise return, if necessary after watching its heartbeats."""
        running = _runs(owner, self._host)
        if running is False or (running and owner["pid"] == os.getpid()):  # this process has left it behind
            return
        if running:
            raise self._held(owner)
        wait = f"waiting {self._stale_s:.0f} s for a sign of life"
        say(f"hpcbal: {self._path} is held by {_name(owner)}; {wait}")
        deadline = time.monotonic() + self._stale_s
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._beat_s / 2))
            now = _read(self._path)
            if now is None:
                return
            if (now.get("token"), now.get("beat")) != (owner.get("token"), owner.get("beat")):
                raise self._held(now)

    def _held(self, owner: dict[str, Any]) -> OutputError:
        return OutputError(
            f"{self._path.parent}: another run is using this directory ({_name(owner)}); wait for it, stop "
            f"it, or choose another directory with --output; if it is certainly dead, remove "
            f"{self._path.name}"
        )

    def _remove(self, owner: dict[str, Any]) -> None:
        """Remove the lock of `owner`; if several processes try, the rename succeeds for only one."""
        grave = self._path.with_name(f"{self._path.name}.{self._token}.tmp")
        try:
            os.rename(self._path, grave)
        except FileNotFoundError:
            return
        except OSError as error:
            raise output_error(self._path, error, "remove the lock") from error
        taken = _read(grave)
        if taken is not None and taken.get("token") != owner.get("token"):
            # Another process took over in between, and this is its new lock: put it back.
            with contextlib.suppress(OSError):
                os.rename(grave, self._path)
            raise self._held(taken)
        with contextlib.suppress(OSError):
            os.unlink(grave)

    def _content(self) -> str:
        lock = {
            "host": self._host,
            "pid": os.getpid(),
            **self._identity,
            "token": self._token,
            "beat": self._beat,
            "time": utc_text(),
        }
        return json.dumps(lock) + "\n"

    def _keep_alive(self) -> None:
        while self._lost is None and not self._released.wait(self._beat_s):
            try:
                self._write_beat()
            except FileNotFoundError:  # somebody has removed the lock
                with contextlib.suppress(OutputError):
                    self._create()
            except OSError as error:
                log.warning("the heartbeat of the lock could not be written: %s", error)

    def _write_beat(self) -> None:
        """Write into this run's own lock, which is never replaced.

        A successor moves a stale lock away before it creates its own. So a heartbeat that is late by more
        than `stale_s` goes into the old file, wherever it is now.
        """
        with open(self._path, "r+b", buffering=0, opener=own_file) as file:
            owner = _parsed(file.readall())
            if "token" not in owner:  # damaged, or being written: nobody has taken over yet
                return
            if owner["token"] == self._token:
                self._beat += 1
                os.pwrite(file.fileno(), self._content().encode(), 0)
                return
        self._lost = (
            f"{self._path.parent}: this run was silent for too long, and {_name(owner)} has taken "
            "over the directory; this run writes nothing more here"
        )
        log.error("%s", self._lost)


def clear_dead_lock(directory: str | os.PathLike[str]) -> None:
    """Remove the lock of a directory if its owner's process is seen to be gone, as after a kill."""
    owner = _read(RunDirectory(Path(directory)).lock)
    if owner is not None and _runs(owner, socket.gethostname()) is False:
        # Another run may have just taken it over, or nothing can be written.
        with contextlib.suppress(OutputError):
            RunLock(directory).release()


def _runs(owner: Mapping[str, Any], host: str) -> bool | None:
    """Whether the owner of a lock runs; None if that cannot be seen from this process on `host`."""
    pid = owner.get("pid")
    return is_running(pid, owner) if owner.get("host") == host and isinstance(pid, int) else None


def _read(path: Path) -> dict[str, Any] | None:
    """The content of the lock; None if there is no lock; empty if it is being created or damaged."""
    try:
        return _parsed(read_file(path))
    except FileNotFoundError:
        return None
    except OSError:
        return {}


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        lock = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return lock if isinstance(lock, dict) else {}


def _name(owner: dict[str, Any]) -> str:
    if "host" not in owner:
        return "a run that has not written its name yet"
    return f"process {owner.get('pid')} on {owner['host']}, last sign of life {owner.get('time')}"
