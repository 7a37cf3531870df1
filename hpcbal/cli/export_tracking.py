"""`hpcbal export-tracking`: write a run for MLflow or Weights & Biases, into a local directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcbal.cli.options import Subparsers, print_text


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "export-tracking",
        help="write a run for MLflow or Weights & Biases",
        description="Write settings, metrics of each epoch, state and paths of every DNN of a run into a "
        "local directory of MLflow, or as offline runs of Weights & Biases. Nothing is sent.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument("--to", required=True, choices=("mlflow", "wandb-offline"), help="for which of them")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="PATH",
        help="the directory of MLflow or Weights & Biases, which may hold other runs (default: "
        "DIR/tracking/mlflow or DIR/tracking/wandb)",
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Export, and say how the result is shown."""
    from hpcbal.export.tracking import export_tracking

    place = export_tracking(args.directory, args.to, args.into)
    print_text(f"written: {place}")
    if args.to == "mlflow":
        print_text(f"show it: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {place}")
    else:
        print_text(f"upload it: wandb sync {place}/wandb/offline-run-*")
    return 0
