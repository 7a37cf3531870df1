"""Write the current state of a run into its status."""

from __future__ import annotations

from hpcbal.control import Ensemble
from hpcbal.runtime.record.accounts import Accounts
from hpcbal.runtime.record.group_watch import GroupWatch
from hpcbal.runtime.record.preprocessing_stats import PreprocessingStats
from hpcbal.runtime.record.saved_epochs import SavedEpochs
from hpcbal.telemetry.views.ensemble_status import DnnStatus, EnsembleStatus
from hpcbal.telemetry.views.summary import best_of, main_metric_of

PHASES = {"new": "starting", "round": "training", "choosing": "training"}
"""Phases of the state machine that have another name for users."""


def fill_status(
    status: EnsembleStatus,
    ensemble: Ensemble,
    stats: PreprocessingStats,
    accounts: Accounts,
    watch: GroupWatch,
    saved: SavedEpochs,
) -> None:
    """Update what changes in `status`, except for the prediction and the end."""
    snapshot = ensemble.snapshot()
    status["preprocessing"] = {
        "preprocessors": ensemble.plan.num_preprocessors if ensemble.plan is not None else 0,
        "samples_per_s": stats.samples_per_s or 0.0,
        "bad_samples": len(stats.bad),
    }
    phase = PHASES.get(snapshot["phase"], snapshot["phase"])
    status["phase"] = "suspending" if snapshot["suspending"] and phase != "finished" else phase
    status["round"] = snapshot["round"]
    status["pass"] = snapshot["pass_index"]
    status["busy_gpus"] = len({gpu for dnn in snapshot["dnns"].values() for gpu in dnn["gpus"]})
    status["dnns"] = []
    epochs_by_dnn = {n: [record.metrics for record in dnn.history] for n, dnn in ensemble.state.dnns.items()}
    main = main_metric_of(epochs_by_dnn.values())
    for name, dnn in snapshot["dnns"].items():
        account = accounts.now(name)
        entry: DnnStatus = {
            "name": name,
            "state": dnn["state"],
            "epochs": dnn["epochs"],
            "max_epochs": dnn["max_epochs"],
            "metrics": dnn["metrics"],
            "main_metric": main,
            "best": best_of(epochs_by_dnn[name], main),
            "gpus": dnn["gpus"],
            "wall_time_s": account.wall_time_s,
            "slot_seconds": account.slot_seconds,
            "cause": dnn["cause"] or "",
            "detail": dnn["detail"] or "",
        }
        if (weights := saved.status(name)) is not None:
            entry["weights"] = weights
        if dnn["left_out"]:
            entry["left_out"] = dnn["left_out"]
        if name in watch.stragglers:
            found = watch.stragglers[name]
            entry["straggler"] = {"gpu": found.gpu, "why": found.why, "late_s": found.late_s}
        if name in watch.works:
            work = watch.works[name]
            entry["work"] = {
                "relative": list(work.relative),
                "imbalance_left": work.imbalance_left,
                "waited": work.waited,
            }
        status["dnns"].append(entry)
