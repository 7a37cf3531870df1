"""Write the report page at the end of a run; a failure never affects the run."""

from __future__ import annotations

import logging
import threading

from hpcbal.errors import HpcbalError
from hpcbal.telemetry.files.run_directory import RunDirectory

log = logging.getLogger(__name__)

DEADLINE_S = 5.0
"""How long the end of a run waits for the page; 1,000 DNNs on 4,096 slots take about a second."""


def write_final_report(run: RunDirectory, deadline_s: float = DEADLINE_S) -> None:
    """Write report.html from the files of `run`; errors are only logged."""
    thread = threading.Thread(target=_write, args=(run,), name="report", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        log.warning(
            "the report takes longer than %.0f s and is skipped; make it with: hpcbal report %s",
            deadline_s,
            run.root,
        )


def _write(run: RunDirectory) -> None:
    try:
        from hpcbal.report.page.page import write_page
        from hpcbal.report.reading.run_files import read_run

        write_page(read_run(run.root), run.report)
    except HpcbalError as error:
        log.warning("no report was written: %s", error)
    except Exception:  # training is done; an error in the report must not change the exit code
        log.warning("no report was written because of an internal error", exc_info=True)
