"""A run: started from Python, or found in its directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcbal.api.child import Child, refuse_rank, refuse_second
from hpcbal.api.verbs import (
    ConfigLike,
    arguments_for,
    changes,
    naming_arguments,
    of_python,
    options,
    path_word,
    unchanged_process,
    warn,
)
from hpcbal.cli.main import parsed
from hpcbal.cli.options import Answer
from hpcbal.errors import ExitCode, InputError, OutputError, RunFailed, RunRefused
from hpcbal.telemetry.files.run_directory import RunDirectory

if TYPE_CHECKING:
    from hpcbal.api.ensemble import Ensemble
    from hpcbal.config import AnyConfig
    from hpcbal.config.source.given import GivenConfig
    from hpcbal.runtime.handoff.launch_dir import RunRequest

_LOOK_S = 1.0
_EVALUATED = (ExitCode.DONE, ExitCode.FAILED_DNNS)
Weights = Literal["best", "last"]


@naming_arguments()
def run(
    config: ConfigLike,
    *,
    output: str | os.PathLike[str] | None = None,
    set: Mapping[str, Any] | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    log_level: str | None = None,
) -> Run:
    """Start what `hpcbal run` starts, or continue it, in the background.

    Args:
        config: a YAML file, or its keys as a dict; relative paths in it are relative to the current
            directory. Models and datasets are import paths, or functions and classes that have one.
        output: output directory of the run; None: `output.dir` of the configuration.
        set: changes by dotted key, such as `{"dnns.small.batch_size": 64}`.
        resume: whether to refuse to start a new run.
        retry_failed: whether what has failed gets another try.
        log_level: level of the log files of ranks.

    Returns:
        The run. It stops cleanly when this process ends; `Run.wait` waits for its end.

    Raises:
        ConfigError: with all problems of the configuration; nothing was started then.
        InputError: if an option is wrong, or a launcher has started this process.
        OutputError: if nothing can be written to the output directory, it holds something else, or a run uses
            it; if a dict differs from the run in a key that must stay the same.
    """
    refuse_rank("run")
    words = [*changes(set), *options(output=output, log_level=log_level)]
    words += options(resume=resume, retry_failed=retry_failed)
    args = arguments_for("run", config, words)
    from hpcbal.cli.run import request_of
    from hpcbal.config import load_config
    from hpcbal.config.source.given import GivenConfig
    from hpcbal.runtime.handoff.launch_dir import output_of

    with unchanged_process():
        loaded = load_config(args.config, args.overrides, check_imports=True)
    request = request_of(args, resume=resume, retry_failed=retry_failed)
    directory = output_of(request, loaded)
    refuse_second(directory.root)
    held = []
    if isinstance(args.config, GivenConfig):
        held = [_keep(args.config, directory, loaded, request)]
        args.config = directory.given
    started = _Started(loaded.kind, loaded.name, time.time())
    try:
        child = Child(["run", path_word(args.config), *words], directory.root, keeps=held)
    finally:
        for descriptor in held:
            os.close(descriptor)
    return Run(directory.root, child, started)


def _keep(given: GivenConfig, directory: RunDirectory, config: AnyConfig, request: RunRequest) -> int:
    """Write a configuration into the directory, unless the start would be refused: another one needs it.

    A start reads the file seconds later, when it has no lock of the directory yet.

    Returns:
        A descriptor that keeps others from replacing the file as long as a process has it.

    Raises:
        OutputError: see `claim_output`; also if another start has not ended.
    """
    from hpcbal.config import resolved_yaml
    from hpcbal.kinds import KINDS
    from hpcbal.telemetry.claim.directory import claim_output
    from hpcbal.telemetry.files.atomic_file import write_atomic

    kind = KINDS[config.kind]
    resolved = resolved_yaml(kind.runs.requested(request, config))
    _, lock = claim_output(directory.root, resolved, request.resume, kind.jobs)
    with lock:
        _refuse_replacing(directory.given)
        write_atomic(directory.given, given.text_with(config.name), durable=True)
        descriptor = os.open(directory.given, os.O_RDONLY)
        with contextlib.suppress(OSError):  # this file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _refuse_replacing(given: Path) -> None:
    """Refuse to replace a configuration that a start reads.

    Raises:
        OutputError: if one does.
    """
    with contextlib.suppress(FileNotFoundError), open(given, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(
                f"{given.parent}: another process has started a run here that goes on; wait for it, stop it, "
                "or choose another directory with output"
            ) from error
        except OSError:  # this file system has no locks
            return


@naming_arguments()
def load(directory: str | os.PathLike[str]) -> Run:
    """Return the run in an output directory, in whatever state it is.

    Raises:
        InputError: if there is none.
    """
    if not isinstance(directory, str | os.PathLike):
        raise InputError(
            f"directory: got a {type(directory).__name__}, allowed: the path of the output directory of a run"
        )
    files = RunDirectory(Path(directory))
    files.check_exists()
    if not (files.config.is_file() or files.status.exists()):
        raise InputError(f"{files.root}: no config.yaml: not the output directory of a run")
    return Run(files.root)


class _Started:
    """A start of this process: kind and name of the run, and when, in Unix seconds."""

    def __init__(self, kind: str, name: str, at_s: float) -> None:
        self.kind, self.name, self.at_s = kind, name, at_s


class Run:
    """A run: what it does, what it has trained, and what to do with it; made by `run` and `load`.

    Attributes:
        directory: its output directory.
    """

    def __init__(self, directory: Path, child: Child | None = None, started: _Started | None = None) -> None:
        self.directory = directory
        self._files = RunDirectory(directory.absolute())  # scripts and notebooks change the current directory
        self._child = child
        self._started = started

    def __repr__(self) -> str:
        return f"<hpcbal.Run {str(self.directory)!r}>"

    def status(self) -> Answer:
        """Return how it is doing: a dict as `hpcbal status --json` prints it; `print` shows the text.

        Raises:
            InputError: if it has not started yet, or its status is damaged.
        """
        from hpcbal.telemetry.views.read_status import read_status, render_status
        from hpcbal.telemetry.views.status import new_run_status

        if self._is_starting():
            assert self._started is not None
            kind, name, at_s = self._started.kind, self._started.name, self._started.at_s
            new = new_run_status(kind, name, 0, _LOOK_S, at_s)
            return Answer(dict(new), lambda: [f"{name}: starting"])
        status = read_status(self._files.root)
        return Answer(dict(status), lambda: render_status(status).rstrip("\n").splitlines())

    def _is_starting(self) -> bool:
        """Whether it was started here, and has written no status since."""
        if self._child is None or self._started is None or self._child.code is not None:
            return False
        try:
            return self._files.status.stat().st_mtime < self._started.at_s
        except OSError:
            return True

    def wait(self, timeout_s: float | None = None, *, show: bool = True, check: bool = True) -> int:
        """Wait for its end. Ctrl-C stops a run of this process cleanly, and once more kills its ranks.

        Args:
            timeout_s: how long; None: as long as it takes.
            show: whether to print what `hpcbal run` prints, if it was started here.
            check: whether a code other than 0 is an error. A stop that was asked for here is none.

        Returns:
            The exit code of `hpcbal run`, see `hpcbal --help`.

        Raises:
            TimeoutError: if it still runs then.
            RunRefused: if its input was wrong (code 2).
            RunFailed: if it has ended with another code, or was killed.
            InputError: if `timeout_s` is no number.
            KeyboardInterrupt: after its end, if there was a Ctrl-C.
        """
        is_number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
        if timeout_s is not None and (not is_number or math.isnan(timeout_s)):
            raise InputError(f"timeout_s: got {timeout_s!r}, allowed: a number of seconds, or None")
        if self._child is None:
            return self._wait_for_other(timeout_s, check)
        code = self._child.wait(timeout_s, show=show)
        if check:
            self._child.check(code)
        return code

    def stop(self, *, kill: bool = False) -> int:
        """Stop it: it writes checkpoints first, and the same call continues it.

        Args:
            kill: whether not to wait for checkpoints; only of a run that was started here.

        Returns:
            The exit code: 75 if it was stopped, or that of a run that has ended before.

        Raises:
            InputError: if it runs on another machine.
        """
        if self._child is not None:
            self._child.stop(kill=kill)
            return self._child.wait(show=False)
        if kill:
            raise InputError(f"{self.directory}: kill: only for a run that was started by this process")
        self._stop_other()
        return self._wait_for_other(None, check=False)

    def _stop_other(self) -> None:
        from hpcbal.telemetry.resources.processes import is_running
        from hpcbal.telemetry.views.read_status import read_status
        from hpcbal.telemetry.views.status import death_note, has_ended

        status = read_status(self._files.root)
        if has_ended(status) or death_note(status) is not None:
            return
        host, pid = status["host"], status["pid"]
        if host != socket.gethostname() or not is_running(pid, status.get("process", {})):
            raise InputError(f"{self.directory}: runs on {host}; stop it there, or by its batch system")
        os.kill(pid, signal.SIGUSR2)  # rank 0 stops all of them

    def _wait_for_other(self, timeout_s: float | None, check: bool) -> int:
        """Wait for a run that somebody else has started, by its status."""
        from hpcbal.telemetry.views.read_status import read_status
        from hpcbal.telemetry.views.status import death_note, has_ended

        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            status = read_status(self._files.root)
            note = death_note(status)
            if has_ended(status) or note is not None:
                break
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError(f"{self.directory}: the run still goes on")
            time.sleep(_LOOK_S)
        code = int(ExitCode.INTERNAL_ERROR if status["exit_code"] is None else status["exit_code"])
        if check and code != ExitCode.DONE:
            kind = RunRefused if code == ExitCode.WRONG_INPUT else RunFailed
            raise kind("hpcbal run", code, str(self.directory), note or "")
        return code

    def results(self) -> list[dict[str, Any]]:
        """Return the table of results.csv: a dict for each DNN or job, with the columns as keys.

        Raises:
            InputError: if there is none yet: a start writes it when it ends.
        """
        from hpcbal.telemetry.views.results import read_table

        if not self._files.results.exists():
            raise InputError(
                f"{self._files.results}: not there yet: a run writes it when it ends; until then use status()"
            )
        return read_table(self._files.results)

    def frame(self) -> Any:
        """Return the results as a pandas data frame, a row for each DNN or job.

        Raises:
            InputError: if there are none yet, or pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError(
                f"frame: needs pandas ({error}); pip install pandas, or use results(), which needs nothing"
            ) from error
        return pandas.DataFrame(self.results())

    @naming_arguments()
    def report(self, output: str | os.PathLike[str] | None = None, *, plots: bool = True) -> Path:
        """Make one page about it, and plots beside the page.

        Args:
            output: the page; None: report.html in its directory.

        Returns:
            The page.

        Raises:
            InputError: if its files cannot be read.
            OutputError: if the page cannot be written.
        """
        from hpcbal.cli.report import write

        words = ["report", path_word(self._files.root), *options(output=output, no_plots=not plots)]
        with unchanged_process():
            return write(parsed(words), warn).page

    @naming_arguments()
    def evaluate(
        self,
        data: str | None = None,
        *,
        data_args: Mapping[str, Any] | None = None,
        dnns: Sequence[str] = (),
        weights: Weights | None = None,
        show: bool = False,
    ) -> Answer:
        """Evaluate its DNNs and their ensemble, with `hpcbal evaluate`, and wait for the result.

        Args:
            data: test, validation, or the import path of a dataset that is called with `data_args`.
            dnns: only these: names, or patterns such as `resnet*`.
            weights: of the best or of the last epoch; None: the best ones if they are kept.
            show: whether to print what it prints.

        Returns:
            A dict as `hpcbal evaluate --json` prints it; `print` shows the table. `left_out` says which DNNs
            could not be evaluated, and why.

        Raises:
            ConfigError: if YAML cannot express a value of `data_args`.
            RunRefused: if its input is wrong.
            RunFailed: if it did not end well.
            KeyboardInterrupt: after its end, if there was a Ctrl-C.
        """
        from hpcbal.telemetry.views.evaluation import evaluation_of, render_evaluation

        words = options(
            data=_path(data),
            data_args=_json(data_args, "evaluate"),
            dnns=_names(dnns),
            weights=weights,
            json=True,  # another evaluation may replace the file in its directory at the same time
        )
        words = ["evaluate", path_word(self._files.root), *words]
        plain = _last_json(self._do(words, show, _EVALUATED, has_answer=True))
        found = evaluation_of(plain)
        answer = Answer(plain, lambda: render_evaluation(found).splitlines())
        if show:
            print(answer, flush=True)
        return answer

    @naming_arguments()
    def predictions(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        to: str | os.PathLike[str],
        data_args: Mapping[str, Any] | None = None,
        dnns: Sequence[str] = (),
        weights: Weights | None = None,
        ensemble: Literal["mean", "greedy"] | None = None,
        no_labels: bool = False,
        force: bool = False,
        show: bool = False,
    ) -> Path:
        """Write its ensemble's predictions for every sample, with `hpcbal evaluate --to`.

        Args:
            data: test, validation, samples without labels (a folder of images, or a file .h5, .npy or
                .npz), or the import path of a dataset that is called with `data_args`.
            to: the file; its end decides on the format: .parquet, .h5 or .csv.
            dnns, weights, show: as for `evaluate`; predictions of named DNNs leave evaluation.json as it is.
            ensemble: the mean of all DNNs, which None means, too, or the greedy selection.
            no_labels: whether the dataset has no labels, or none to look at.
            force: whether to replace a file that is there already.

        Returns:
            `to`.

        Raises:
            ConfigError, RunRefused, RunFailed, KeyboardInterrupt: as `evaluate`.
        """
        words = options(
            data=_path(data),
            data_args=_json(data_args, "predictions"),
            to=to,
            dnns=_names(dnns),
            weights=weights,
            ensemble=ensemble,
            no_labels=no_labels,
            force=force,
        )
        self._do(["evaluate", path_word(self._files.root), *words], show, _EVALUATED)
        return Path(to)

    @naming_arguments()
    def export(
        self,
        name: str | None = None,
        *,
        to: str | os.PathLike[str],
        ensemble: Literal["mean", "greedy"] | None = None,
        weights: Weights | None = None,
        force: bool = False,
    ) -> Path:
        """Write what it has trained in a format that loads without hpcbal, with `hpcbal export`.

        Args:
            name: of the DNN or job; not needed if the run is one job, or for an ensemble.
            to: the file or directory; its end decides on the format.
            ensemble: instead of one DNN, those of the last `evaluate` as one model: the mean of all, or the
                `greedy` selection.
            weights: of the best or of the last epoch; None: the best ones if they are kept. An ensemble has
                those with which it was evaluated.
            force: whether to replace a model that is there already.

        Returns:
            `to`.

        Raises:
            RunRefused: if its input is wrong.
            RunFailed: if it did not end well.
        """
        words = ["export", path_word(self._files.root), *([] if name is None else [name])]
        more = options(to=to, ensemble=ensemble, weights=weights, force=force)
        self._do([*words, *more], False, (ExitCode.DONE,))
        return Path(to)

    def _do(self, words: list[str], show: bool, allowed: Sequence[int], *, has_answer: bool = False) -> str:
        """Do a verb in a process of its own, wait for it, and return its answer; see `Child`."""
        parsed(words)  # wrong options are told at once
        child = Child(words, self.directory, has_answer=has_answer)
        try:
            child.check(child.wait(show=show), allowed)
            return child.answer() if has_answer else ""
        except RunRefused as error:
            said = of_python(error.output)
            raise RunRefused(error.command, error.code, error.directory, said) from None

    @naming_arguments()
    def ensemble(
        self,
        select: Literal["mean", "greedy"] = "mean",
        *,
        dnns: Sequence[str] = (),
        weights: Weights | None = None,
    ) -> Ensemble:
        """Load its trained DNNs into this process, to predict together.

        Args:
            select: `mean`: all of them, equally; `greedy`: those that predict the validation samples best
                together, with weights, as `hpcbal evaluate` selects them.
            dnns, weights: as for `evaluate`.

        Raises:
            InputError: if nothing can be loaded, or an option is wrong.
            DataError: if `greedy` finds no validation samples.
        """
        words = ["evaluate", path_word(self._files.root), *options(dnns=_names(dnns), weights=weights)]
        which = parsed(words).weights
        from hpcbal.api.ensemble import open_ensemble

        return open_ensemble(self._files.root, select, _names(dnns), which)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _path(data: object) -> str | None:
    """Return the word for `--data`.

    Raises:
        InputError: if these are samples, not the place where they are.
    """
    if data is not None and not isinstance(data, str | os.PathLike):
        raise InputError(
            f"data: got a value of type {type(data).__name__}, allowed: test, validation, a path, or the "
            "import path of a dataset; save an array with numpy.save and give its file, or predict it in "
            "this process: ensemble().predict takes arrays"
        )
    return data if data is None else os.fspath(data)


def _last_json(text: str) -> Any:
    """Return the mapping that `print_json` wrote last; models may print before and after it."""
    return json.JSONDecoder().raw_decode(text, max(0, text.rfind('{\n  "')))[0]  # others are indented more


def _json(arguments: Mapping[str, Any] | None, verb: str) -> str | None:
    """Return arguments of a dataset as the word for `--data-args`."""
    from hpcbal.config.source.given import plain_of

    return None if arguments is None else json.dumps(plain_of(arguments, "data_args", verb))
