"""The page that a run leaves behind: made when everything else is done, and never in the way."""

from __future__ import annotations

import logging
import threading

from hpcbal.errors import HpcbalError
from hpcbal.telemetry import RunDirectory

log = logging.getLogger(__name__)

DEADLINE_S = 5.0
"""The run's end waits so long for the page; that of 1,000 DNNs on 4,096 slots takes a second to make."""


def write_final_report(run: RunDirectory, deadline_s: float = DEADLINE_S) -> None:
    """Write report.html from the files of `run`; whatever goes wrong is a line in the log."""
    thread = threading.Thread(target=_write, args=(run,), name="report", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        log.warning(
            "the report takes longer than %.0f s and is left out; make it with: hpcbal report %s",
            deadline_s,
            run.root,
        )


def _write(run: RunDirectory) -> None:
    try:
        from hpcbal.report import read_run, write_page

        write_page(read_run(run.root), run.report)
    except HpcbalError as error:
        log.warning("no report was written: %s", error)
    except Exception:  # the networks are trained; a fault of the page must not spoil the exit code
        log.warning("no report was written, for a reason that hpcbal did not foresee", exc_info=True)
