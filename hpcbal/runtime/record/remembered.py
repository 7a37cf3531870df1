"""Note at the end of a run what it took, so that the next prediction of its kind knows."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from hpcbal.config import RunConfig
from hpcbal.errors import HpcbalError
from hpcbal.kinds import KINDS, Kind
from hpcbal.planning.allocation import PredictedRun
from hpcbal.planning.calibration import (
    EarlierRun,
    RunKey,
    append_run,
    calibration_file,
    read_runs,
    usual_startup_s,
)
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.ledger.account import RunAccount
from hpcbal.telemetry.ledger.run import WholeRun
from hpcbal.telemetry.views.table import count_text

if TYPE_CHECKING:
    from hpcbal.runtime.kinds.paramserver import ExecutorRuns

log = logging.getLogger(__name__)

DEADLINE_S = 5.0
"""How long the end of a run waits for the simulation of its parameter-server jobs."""


def remember_run(key: RunKey, whole: WholeRun, account: RunAccount) -> None:
    """Append a run that is done to the user's file, if it was predicted; an error never affects the run."""
    run = EarlierRun.of(whole, account.nodes)
    if run is None:
        return
    try:
        append_run(key, run)
    except OSError as error:
        reason = error.strerror or error
        log.info("%s: later plans do not learn what this run took: %s", calibration_file(), reason)


def expected_startup_s(config: RunConfig) -> float:
    """Return the seconds from the command to the first work of the ranks, as `hpcbal plan` takes them."""
    return usual_startup_s(read_runs(RunKey.of(config), log.debug))


def whole_lines(whole: WholeRun, kind: Kind) -> list[str]:
    """Return the time and use of the whole run, beside what was predicted before its start, for users."""
    lines = [use_line(whole, kind)]
    if whole.expected_s is not None and whole.expected_startup_s is not None:
        starts = "" if whole.num_starts == 1 else f", in {count_text(whole.num_starts, 'start')}"
        lines.insert(
            0,
            f"from the command to the end: predicted {duration_text(whole.expected_s)}, took "
            f"{duration_text(whole.active_s)}{starts}; until ranks worked: predicted "
            f"{duration_text(whole.expected_startup_s)}, took {duration_text(whole.startup_s)}",
        )
    return lines


def use_line(whole: WholeRun, kind: Kind) -> str:
    """Return how busy the slots were, beside what was predicted, for users."""
    expected = whole.expected_busy
    predicted = "" if expected is None else f", predicted {expected:.0%}"
    by_slot = whole.busy_by_slot
    spread = f"; {min(by_slot):.0%} to {max(by_slot):.0%} by {kind.slot}" if len(by_slot) > 1 else ""
    devices = "" if whole.device_busy is None else f"; GPUs ran kernels in {whole.device_busy:.0%}"
    what = {"training": "trained"}.get(kind.uses["training"], "computed")
    return f"{kind.slot}s {what} in {whole.busy:.0%} of their time{predicted}{spread}{devices}"


def with_prediction(whole: WholeRun, config: RunConfig, num_ranks: int) -> WholeRun:
    """Add what the file alone lets predict of parameter-server jobs, as it was at the start of the run.

    It is simulated at the end of the run: at its start, that would keep the master from its jobs. Nothing
    that the run has measured takes part.

    Args:
        num_ranks: of the run, without the master.
    """
    found: list[PredictedRun] = []
    thread = threading.Thread(target=_predict, args=(config, num_ranks, found), name="predict", daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    if thread.is_alive():
        log.debug("what was predicted is not noted: the simulation takes longer than %.0f s", DEADLINE_S)
    if not found:
        return whole
    return replace(whole, predicted_s=found[0].seconds, predicted_busy=found[0].busy)


def _predict(config: RunConfig, num_ranks: int, found: list[PredictedRun]) -> None:
    try:
        kind = cast("ExecutorRuns[Any, Any]", KINDS[config.kind].runs)
        found.append(kind.predicted(config, num_ranks))
    except HpcbalError as error:
        log.debug("nothing was predicted: %s", error)  # most files do not say how fast machines are
    except Exception:  # training is done; an error here must not change the exit code
        log.warning("nothing was predicted because of an internal error", exc_info=True)
