"""`hpcbal evaluate`: how good the trained DNNs and their ensemble are on samples that they have not seen."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcbal.cli.options import Subparsers, add_json


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "evaluate",
        help="evaluate trained DNNs and their ensemble",
        description="Evaluate the DNNs of a run and their ensemble on a test set, under mpirun, srun or "
        "jsrun; without a launcher, start mpirun. Print a table and write DIR/evaluation.json. With --to, "
        "write the predictions for each sample.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument(
        "--data",
        metavar="SET",
        help="test, validation, the import path of a dataset, or samples without labels: a folder of "
        "images, or a file .h5, .npy or .npz (default: test if the configuration has data.test or "
        "data.test_fraction, else validation)",
    )
    parser.add_argument(
        "--data-args",
        type=_arguments,
        default={},
        metavar="JSON",
        help='arguments of that dataset, such as \'{"path": "/scratch/me/test"}\'',
    )
    parser.add_argument(
        "--dnns",
        action="append",
        type=_names,
        default=[],
        metavar="NAMES",
        help="only these DNNs: names or patterns such as 'resnet*', separated by commas; may be repeated",
    )
    parser.add_argument(
        "--weights",
        choices=("best", "last"),
        help="weights of the best or of the last epoch (default: the best ones if they are kept)",
    )
    parser.add_argument(
        "--no-labels",
        action="store_true",
        help="the callable in --data returns samples without labels, or with labels not to look at",
    )
    parser.add_argument(
        "--to",
        type=Path,
        metavar="FILE",
        help="write the predictions for every sample, with their uncertainty; the end of the name decides "
        "on the format: .parquet, .h5 or .csv",
    )
    parser.add_argument(
        "--ensemble",
        choices=("mean", "greedy"),
        help="whose predictions: the mean of all DNNs (the default), or the greedy selection",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    add_json(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Start or join the evaluation."""
    from hpcbal.runtime import launch
    from hpcbal.runtime.evaluating.request import EvaluationRequest

    request = EvaluationRequest(
        directory=args.directory,
        data=args.data,
        data_args=args.data_args,
        patterns=tuple(name for names in args.dnns for name in names),
        which=args.weights,
        as_json=args.json,
        to=args.to,
        ensemble=args.ensemble,
        force=args.force,
        no_labels=args.no_labels,
    )
    return launch.evaluate(request, args.argv)


def _names(text: str) -> list[str]:
    """Argument type: names or patterns, separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, allowed: names or patterns such as 'resnet*'; leave it out for all DNNs"
        )
    return names


def _arguments(text: str) -> Mapping[str, Any]:
    """Argument type: a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        example = '{"path": "/scratch/me/test"}'
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a JSON object such as '{example}'")
    return value
