"""The request of an evaluation: what the command line asked for, and the run that it is about."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal.config import DnnConfig, EnsembleConfig, load_ensemble
from hpcbal.config.schema.section import is_import_path
from hpcbal.config.source.meant import did_you_mean
from hpcbal.errors import HpcbalError, InputError, refusing_paths
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.kinds import jobs_of
from hpcbal.telemetry.views.read_status import import_roots_of, read_status

if TYPE_CHECKING:
    from hpcbal.checkpoint.weights import Which

TEST, VALIDATION = "test", "validation"
ENSEMBLES = ("mean", "greedy")
"""Names of ensembles on the command line, in the order in which they are evaluated."""


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """One start of `hpcbal evaluate`.

    Attributes:
        directory: output directory of the run.
        data: `test`, `validation`, an import path, or the path of samples without labels; None: the test
            set if there is one, or else the validation set.
        data_args: arguments of the callable at the import path.
        patterns: names of DNNs, with wildcards as in a shell; none: all.
        which: the weights to take; None: the best ones if they are kept, otherwise the last ones.
        as_json: whether to print JSON.
        to: file for the predictions; None: none.
        ensemble: whose predictions, see `ENSEMBLES`; None: of the mean of all.
        force: whether a file that is there may be replaced.
        no_labels: whether labels of the data are not looked at.
    """

    directory: Path
    data: str | None = None
    data_args: Mapping[str, Any] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()
    which: Which | None = None
    as_json: bool = False
    to: Path | None = None
    ensemble: str | None = None
    force: bool = False
    no_labels: bool = False

    @property
    def has_labels(self) -> bool:
        """Whether the samples have labels: all have but those at a path."""
        is_path = self.data not in (None, TEST, VALIDATION) and not is_import_path(self.data or "")
        return not (is_path or self.no_labels)


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """The run to evaluate.

    Attributes:
        config: of the run.
        root: its output directory.
        dnns: the DNNs that were asked for and may be evaluated, in the order of the config.
        left_out: why others that were asked for are left out, by name.
        data: `test`, `validation`, an import path, or the path of samples without labels.
        notes: sentences for people.
        import_roots: where the run looked for the user's modules.
    """

    config: EnsembleConfig
    root: Path
    dnns: tuple[DnnConfig, ...]
    left_out: Mapping[str, str]
    data: str
    notes: tuple[str, ...] = ()
    import_roots: tuple[str, ...] = ()


@refusing_paths()
def open_trained(request: EvaluationRequest) -> TrainedRun:
    """Look at the run, without MPI and TensorFlow.

    Raises:
        InputError: if there is no run, it has no outputs, or nothing that was asked for can be evaluated.
        ConfigError: if its configuration cannot be used here.
    """
    run = RunDirectory(request.directory)
    _check_directory(run)
    roots = import_roots_of(run.root)
    config = load_ensemble(run.config, check_imports=True, import_roots=roots)
    if config.backend.is_emulated:
        raise InputError(
            f"{run.root}: backend.name is emulated: emulated networks have no outputs to evaluate; train the "
            "ensemble with backend.name: auto"
        )
    _check_options(request)
    data, notes = _data(request, config)
    wanted = _matching(request.patterns, [dnn.name for dnn in config.dnns])
    states = _states(run)
    reasons_by_name = {name: _why_left_out(run, name, states.get(name)) for name in wanted}
    left_out = {name: reason for name, reason in reasons_by_name.items() if reason is not None}
    dnns = tuple(dnn for dnn in config.dnns if dnn.name in wanted and dnn.name not in left_out)
    if not dnns:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError(f"{run.root}: no DNN can be evaluated: {reasons}")
    num_early = sum(states.get(dnn.name) in ("pruned", "stopped") for dnn in dnns)
    if 0 < num_early < len(dnns) and not request.patterns:
        notes += (
            f"the mean of all includes DNNs that ended early ({num_early} of {len(dnns)}); to leave "
            "them out, name the others with --dnns",
        )
    return TrainedRun(config, run.root, dnns, left_out, data, notes, roots)


def _check_options(request: EvaluationRequest) -> None:
    """Refuse options that do not go together."""
    is_own = request.data is not None and request.data not in (TEST, VALIDATION)
    if request.data_args and not is_own:
        raise InputError("--data-args: only with --data and a dataset or samples of your own")
    if request.no_labels and not (is_own and is_import_path(request.data or "")):
        raise InputError("--no-labels: only with --data and the import path of a dataset")
    if (
        is_own
        and not is_import_path(request.data or "")
        and not Path(os.path.expanduser(request.data or "")).exists()
    ):
        raise InputError(
            f"--data: got {request.data!r}, allowed: test, validation, the import path of a dataset, "
            "package.module:callable, or a file or folder of samples without labels that exists"
        )
    if request.to is None and not request.has_labels:
        to = "give the file for the predictions: --to predictions.parquet, .h5 or .csv"
        if is_import_path(request.data or ""):
            raise InputError(f"--no-labels: nothing to compare with; {to}")
        raise InputError(
            f"--data: of {request.data} only samples are read, no labels; {to}; or, to compare with labels, "
            "a dataset: --data hpcbal.data:hdf5 (or another) --data-args '{\"path\": ...}'"
        )
    if request.to is None and (request.ensemble is not None or request.force):
        raise InputError("--ensemble, --force: only with --to, the file for the predictions")
    if request.to is not None:
        from hpcbal.data.column_file import check_place  # not at the top: h5py takes long to load

        check_place(request.to, force=request.force)


def _check_directory(run: RunDirectory) -> None:
    run.check_exists()
    if not run.config.is_file():
        raise InputError(f"{run.root}: no config.yaml: not the output directory of a run")


def _data(request: EvaluationRequest, config: EnsembleConfig) -> tuple[str, tuple[str, ...]]:
    """Choose the data to evaluate on, and return notes for people about the choice."""
    has_test = config.data.test is not None or config.data.test_fraction > 0.0
    if request.data is not None:
        return request.data, ()
    if has_test:
        return TEST, ()
    note = (
        "the run has no test set (data.test, data.test_fraction), so these are its validation samples: they "
        "have decided when DNNs stop, so the scores are a little too good"
    )
    return VALIDATION, (note,)


def _matching(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that any pattern matches, in their own order; all without patterns.

    Raises:
        InputError: if a pattern matches none.
    """
    if not patterns:
        return list(names)
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise InputError(
                f"--dnns: no DNN matches {pattern!r}{did_you_mean(pattern, names)}, allowed: names or "
                f"patterns such as 'resnet*' of {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
            )
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def _states(run: RunDirectory) -> dict[str, str]:
    """The states of the DNNs by name, as far as the run's status shows them."""
    try:
        return {job["name"]: job["state"] for job in jobs_of(read_status(run.root))}
    except HpcbalError:  # the checkpoints hold all that is needed
        return {}


def _why_left_out(run: RunDirectory, name: str, state: str | None) -> str | None:
    """Why a DNN in `state` cannot be evaluated; None if it can, as far as its files show."""
    from hpcbal.checkpoint.reader import read_progress

    if state == "failed":
        return "it failed in training"
    try:
        progress, _ = read_progress(run.job(name))
    except HpcbalError as error:
        return str(error)
    return "it has no whole checkpoint" if progress is None else None
