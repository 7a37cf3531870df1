"""`hpcbal export`: write a trained DNN in a format that loads without hpcbal."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hpcbal.cli.options import Subparsers, print_text, print_warning


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "export",
        help="write a trained DNN as a Keras or TensorFlow model",
        description="Write a trained DNN of a run as a .keras file or a TensorFlow SavedModel. Both load "
        "without hpcbal. A description of inputs, preprocessing and classes is written beside it, as JSON.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument("name", metavar="NAME", help="name of a DNN")
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="PATH",
        help="a file that ends in .keras, or a directory for a TensorFlow SavedModel",
    )
    parser.add_argument(
        "--weights",
        choices=("best", "last"),
        help="of the best epoch by its stop rule, or the last one (default: best if they are kept)",
    )
    parser.add_argument("--force", action="store_true", help="replace a model that is there already")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Export, and say what was written."""
    # Before any import of TensorFlow, also by the user's modules.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # a GPU of this node may be in use, and is not needed here
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    from hpcbal.export import export_dnn

    done = export_dnn(args.directory, args.name, args.to, args.weights, force=args.force)
    for note in done.notes:
        print_warning(note)
    print_text(f"model:       {done.path} ({done.weights.in_words()})")
    print_text(f"description: {done.description}")
    return 0
