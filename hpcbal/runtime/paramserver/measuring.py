"""Let an app turn the sums of an objective into metrics."""

from __future__ import annotations

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.errors import UserCodeError
from hpcbal.paramserver.contract import App, AppError, calling, checked_metrics
from hpcbal.paramserver.machine import messages
from hpcbal.paramserver.machine.events import ComputeMetrics, Heard, Measured


def measure(app: App, asked: ComputeMetrics, seconds: float) -> Measured | Heard:
    """The answer to `ComputeMetrics`: the metrics, or that the app has failed.

    Args:
        app: the master's instance.
        asked: with the sums.
        seconds: since the objective before, or since the start.
    """
    try:
        with calling(app, "metrics"):
            found = app.metrics(asked.sums)
        return Measured(asked.epoch, checked_metrics(found), seconds)
    except UserCodeError as error:
        problem = str(error)
    except AppError as error:
        problem = f"{type(app).__name__}.{error}"
    return Heard(SCHEDULER_RANK, messages.Failed("app", problem))
