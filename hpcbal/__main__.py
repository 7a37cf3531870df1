"""The program: `hpcbal`, or `python -m hpcbal`."""

from __future__ import annotations

import atexit
import io
import os
import sys

from hpcbal.garbage import collect_rarely
from hpcbal.stop_signals import (
    deliver_stop_signals,
    ignore_stop_signals,
    keep_stop_signals,
    outlast_stop_signals,
)

_VERBS_THAT_STOP = {"run", "profile", "evaluate"}


def main() -> int:
    """Run the command line; Ctrl-C while its modules are being imported leaves no traceback either."""
    keep_stop_signals()  # the imports take a moment
    collect_rarely()
    _open_missing_streams()
    _use_utf8()
    here = _put_own_folders_last()
    from hpcbal.errors import INTERRUPTED, ExitCode
    from hpcbal.processes import say

    if here is None:
        say("hpcbal: the current directory no longer exists; change to one that does (cd) and start again")
        return int(ExitCode.WRONG_INPUT)
    try:
        if set(sys.argv[1:2]) & _VERBS_THAT_STOP:  # `Requests` and `StopFlag` deliver theirs
            outlast_stop_signals()
            atexit.register(ignore_stop_signals)
        else:
            deliver_stop_signals()
        from hpcbal.cli import main as run

        return run()
    except KeyboardInterrupt:
        say("hpcbal: interrupted")
        return INTERRUPTED


def _open_missing_streams() -> None:
    """Give a process whose standard streams are closed (`>&-`) ones that lead nowhere.

    Otherwise the next files that it opens would get their descriptors, and `print` would fail.
    """
    for name in ("stdin", "stdout", "stderr"):  # in the order of descriptors: the lowest free one is taken
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def _use_utf8() -> None:
    """Read and write names of files in UTF-8, as configurations are written, whatever the locale.

    Otherwise an umlaut in an argument would be two characters that cannot be printed, and one in a file's
    path could not be opened. Python chooses its encodings before any of its code runs, so start it again.
    A stream that the user has given another encoding (PYTHONIOENCODING) gets escapes for what it lacks.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1" and sys.executable:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _put_own_folders_last() -> str | None:
    """Import from the current folder and from PYTHONPATH only what is nowhere else.

    Their modules come before Python's own, so that a user's json.py would replace it in every rank. Folders
    of PYTHONPATH in which libraries are installed, such as those of a site's modules, come before other
    libraries, but after Python's own modules, too.

    Returns: the current folder; None if it was removed.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return None
    stdlib = os.path.dirname(os.__file__)
    before_stdlib = sys.path[: sys.path.index(stdlib)] if stdlib in sys.path else []
    own = {here, *(os.path.realpath(entry) for entry in before_stdlib if entry and not _has_libraries(entry))}
    pythons_own = (stdlib, os.path.join(stdlib, "lib-dynload"))

    def place(entry: str) -> int:
        return 0 if entry in pythons_own else 2 if os.path.realpath(entry or here) in own else 1

    sys.path.sort(key=place)
    return here


def _has_libraries(folder: str) -> bool:
    try:
        return any(name.endswith((".dist-info", ".egg-info", ".egg")) for name in os.listdir(folder))
    except OSError:  # a zip file, or nothing
        return True


if __name__ == "__main__":
    sys.exit(main())
