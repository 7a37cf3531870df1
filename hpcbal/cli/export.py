"""`hpcbal export` and `export-tracking`: write a trained DNN, or a run for trackers of experiments."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal import env
from hpcbal.cli.options import Subparsers, print_text, print_warning

if TYPE_CHECKING:
    from hpcbal.config import JobsConfig, ParamServerConfig


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "export",
        help="write a trained DNN as a model that loads without hpcbal, or trained parameters as arrays",
        description="Write a trained DNN of a run: a Keras model as a .keras file or a TensorFlow "
        "SavedModel, a module of PyTorch as a .pt, .safetensors or .onnx file. With --ensemble, write the "
        "evaluated DNNs together as one model. All load without hpcbal. A "
        "description of inputs, preprocessing and classes is written beside it, as JSON. Of a job on "
        "parameter servers: all tables and states as arrays in an .npz file, or a Keras model.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="name of a DNN or a job; not needed if the run is one job"
    )
    parser.add_argument(
        "--ensemble",
        choices=("mean", "greedy"),
        help="instead of a NAME: the mean of all DNNs of the last `hpcbal evaluate`, or those that it has "
        "selected, with their shares",
    )
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="PATH",
        help="a file that ends in .keras, or a directory for a TensorFlow SavedModel; of a module of "
        "PyTorch: a file that ends in .pt, .safetensors or .onnx; of an ensemble: one that ends in .pt2 or "
        ".onnx, and of Keras models alone .keras or a directory; of a job on parameter servers: one that "
        "ends in .npz or .keras",
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
    os.environ.update(env.tensorflow_settings())
    from hpcbal.config import EnsembleConfig, load_config
    from hpcbal.errors import InputError
    from hpcbal.export import export_dnn
    from hpcbal.kinds import KINDS
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.views.read_status import import_roots_of

    run_directory = RunDirectory(args.directory)
    run_directory.check_exists()
    if run_directory.config.is_file():
        config = load_config(run_directory.config, import_roots=import_roots_of(args.directory))
        if not isinstance(config, EnsembleConfig):
            if args.ensemble is not None:
                raise InputError(f"--ensemble: {args.directory} is no run of an ensemble; give NAME instead")
            return _export_job(args, KINDS[config.kind].runs.with_submitted(config, run_directory))
    if args.ensemble is not None:
        return _export_ensemble(args)
    if args.name is None:
        raise InputError(
            f"{args.directory}: which DNN? Give its NAME, as `hpcbal status` shows it, or all that were "
            "evaluated with --ensemble"
        )
    done = export_dnn(args.directory, args.name, args.to, args.weights, force=args.force)
    for note in done.notes:
        print_warning(note)
    print_text(f"model:       {done.path} ({done.weights.in_words()})")
    print_text(f"description: {done.description}")
    return 0


def _export_ensemble(args: argparse.Namespace) -> int:
    """Export the DNNs of the last evaluation as one model."""
    from hpcbal.errors import InputError
    from hpcbal.export import export_ensemble
    from hpcbal.telemetry.views.table import count_text

    if args.name is not None:
        raise InputError(f"--ensemble: got the name {args.name}, too, allowed: one of both")
    if args.weights is not None:
        raise InputError(
            "--weights: allowed with a NAME; an ensemble has the weights with which it was evaluated: "
            f"hpcbal evaluate {args.directory} --weights {args.weights}"
        )
    done = export_ensemble(args.directory, args.ensemble, args.to, force=args.force)
    for note in done.notes:
        print_warning(note)
    members = ", ".join(f"{name} {share:.2f}" for name, share in done.shares.items())
    print_text(f"model:       {done.path} ({done.num_bytes / 1e6:.1f} MB)")
    print_text(f"description: {done.description}")
    print_text(f"members:     {count_text(len(done.shares), 'DNN')}, by share: {members}")
    tried = count_text(done.num_tried, "sample")
    print_text(
        f"checked:     predicts {tried} of the run as its members do, to {done.written.difference:.0e}"
    )
    cost = f"{done.written.cost:.1f} times that of {done.best}, the best member"
    print_text(f"latency:     about {cost}, for {tried} at once")
    return 0


def _export_job(args: argparse.Namespace, config: ParamServerConfig | JobsConfig) -> int:
    """Export what a job on parameter servers has trained."""
    from hpcbal.errors import InputError
    from hpcbal.runtime.jobs.trained import export_job
    from hpcbal.telemetry.views.table import count_text

    jobs = config.jobs_by_name
    name = args.name or next(iter(jobs))
    if name not in jobs or (args.name is None and len(jobs) > 1):
        given = "which job? Give its NAME" if args.name is None else f"has no job {name!r}"
        raise InputError(f"{args.directory}: {given}, allowed: {', '.join(jobs)}")
    if args.weights == "best":
        raise InputError("--weights: got best, allowed: last, which is all that a parameter-server job keeps")
    job = jobs[name]
    seed = config.seed if job.seed is None else job.seed
    trained = export_job(job, name, seed, args.directory, args.to, force=args.force)
    print_text(f"{args.to}: {job.app} after {count_text(trained.epochs, 'epoch')}")
    return 0


def add_tracking_parser(verbs: Subparsers) -> None:
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
    parser.set_defaults(function=track)


def track(args: argparse.Namespace) -> int:
    """Export, and say how the result is shown."""
    from hpcbal.export.tracking import export_tracking

    place = export_tracking(args.directory, args.to, args.into)
    print_text(f"written: {place}")
    if args.to == "mlflow":
        print_text(f"show it: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {place}")
    else:
        print_text(f"upload it: wandb sync {place}/wandb/offline-run-*")
    return 0
