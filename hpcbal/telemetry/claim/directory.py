"""Make sure that a run and its output directory belong together."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcbal.errors import OutputError
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.files.atomic_file import output_error, remove_quietly, write_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.streams.ledger import read_ledger

log = logging.getLogger(__name__)

# What may differ between two starts of a run: it changes where and how long, not what is computed.
_MAY_DIFFER = (
    "output",
    "walltime",
    "stall_timeout_s",
    "slots",
    "checkpoint",
    "schedule",
    "balance",
    "backend.workers",
    "timeline",
    "data.max_bad_fraction",
    "data.max_traversal_gap",
    "dataplane.ring_bytes",
)
_MAY_GROW = "stop.max_epochs"  # of each DNN
_DNN_MAY_DIFFER = ("balance", "shares")
# Job output that batch systems put into the directory before the run starts, and our own first files.
_HARMLESS_SUFFIXES = (".out", ".err", ".log", ".tmp")
_HARMLESS_NAMES = ("run.lock", "logs")
_PROBE_BYTES = 1 << 16
_MAX_SHOWN = 8


def claim_output(
    directory: str | os.PathLike[str], config_yaml: str, resume_required: bool = False
) -> tuple[bool, RunLock]:
    """`prepare_output` under the directory's lock, so that nothing of a living run is touched.

    Returns:
        Whether there is a run to go on with, and the lock, held.

    Raises:
        OutputError: as `prepare_output`, or if another run is using the directory.
    """
    root = Path(directory)
    try:
        if not RunDirectory(root).config.exists():
            _refuse_foreign(root, resume_required)
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(root, error, "use the output directory") from error
    lock = RunLock(root)
    try:
        return prepare_output(root, config_yaml, resume_required), lock
    except BaseException:
        lock.release()
        raise


def prepare_output(
    directory: str | os.PathLike[str], config_yaml: str, resume_required: bool = False
) -> bool:
    """Make or check the output directory of a run.

    At the first start the directory is made and the resolved config written into it. Once a round was
    started, the config must be the same but for what may differ (where it runs, for how long, more epochs).

    Args:
        directory: of the run; parents are made too.
        config_yaml: the resolved config.
        resume_required: only go on with an existing run (`--resume`).

    Returns:
        Whether there is a run to go on with.

    Raises:
        OutputError: if the directory is unwritable or full, another run's, or something else's.
    """
    run = RunDirectory(Path(directory))
    try:
        existing = run.config.read_text(encoding="utf-8") if run.config.exists() else None
        if existing is None:
            _refuse_foreign(run.root, resume_required)
            run.root.mkdir(parents=True, exist_ok=True)
        _probe(run.root)
    except OSError as error:
        raise output_error(run.root, error, "use the output directory") from error
    if existing is None:
        write_atomic(run.config, config_yaml, durable=True)
        return False
    if not _has_trained(run):  # a start that failed, or a profile: nothing depends on the config yet
        write_atomic(run.config, config_yaml, durable=True)
        return True
    changed = _check_same(run, existing, config_yaml)
    if changed:
        log.info("%s: going on with changed %s", run.root, ", ".join(changed))
        write_atomic(run.config, config_yaml, durable=True)
    return True


def _refuse_foreign(root: Path, resume_required: bool) -> None:
    """Raise if `root` holds no run but other things, or if a run is required."""
    if resume_required:
        raise OutputError(f"{root}: no run to resume here (no config.yaml); start without --resume")
    if not root.exists():
        return
    foreign = sorted(
        path.name
        for path in root.iterdir()
        if path.suffix not in _HARMLESS_SUFFIXES and path.name not in _HARMLESS_NAMES
    )
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise OutputError(
            f"{root}: not empty and not a run of hpcbal (it holds {shown}); "
            "choose a new or empty directory with --output"
        )


def _has_trained(run: RunDirectory) -> bool:
    return any(line.get("event") == "round-started" for line in read_ledger(run.ledger))


def _probe(root: Path) -> None:
    """Raise OSError now, not in an hour, if nothing can be written."""
    probe = root / "probe.tmp"
    try:
        with open(probe, "wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        remove_quietly(probe)


def _check_same(run: RunDirectory, before: str, now: str) -> list[str]:
    """The keys that differ and may; raises if one differs that may not."""
    import yaml

    try:
        old = _by_name(yaml.safe_load(before))
    except yaml.YAMLError as error:
        raise OutputError(
            f"{run.config}: damaged, so this run cannot be continued safely; choose another directory with "
            f"--output, or put the right config.yaml back ({error})"
        ) from error
    allowed: list[tuple[str, Any, Any]] = []
    refused: list[tuple[str, Any, Any]] = []
    for key, given_before, given_now in _differences("", old, _by_name(yaml.safe_load(now))):
        is_allowed = any(f"{key}.".startswith(f"{prefix}.") for prefix in _MAY_DIFFER) or (
            key.startswith("dnns.")
            and (key.rpartition(".")[2] in _DNN_MAY_DIFFER or _has_grown(key, given_before, given_now))
        )
        (allowed if is_allowed else refused).append((key, given_before, given_now))
    if refused:
        shown = "\n".join(f"  {key}: was {_text(a)}, is {_text(b)}" for key, a, b in refused[:_MAX_SHOWN])
        more = f"\n  and {len(refused) - _MAX_SHOWN} more" if len(refused) > _MAX_SHOWN else ""
        raise OutputError(
            f"{run.root}: holds a run with another config; it can go on only with the same config (a DNN's "
            f"{_MAY_GROW} may grow; {', '.join(_MAY_DIFFER)} and a DNN's {', '.join(_DNN_MAY_DIFFER)} may "
            f"change). Choose another directory with --output, or undo these changes:\n{shown}{more}"
        )
    return [key for key, _, _ in allowed]


def _has_grown(key: str, before: Any, now: Any) -> bool:
    both_int = isinstance(before, int) and isinstance(now, int)
    return key.endswith(f".{_MAY_GROW}") and both_int and now > before


_ABSENT = object()


def _by_name(config: Any) -> Any:
    """`config` with its DNNs keyed by name, so that a difference names the DNN, not a number."""
    if not isinstance(config, Mapping) or not isinstance(config.get("dnns"), list):
        return config
    dnns = {
        str(dnn.get("name", index)) if isinstance(dnn, Mapping) else str(index): dnn
        for index, dnn in enumerate(config["dnns"])
    }
    return {**config, "dnns": dnns}


def _differences(prefix: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, value before, value now) of every leaf that differs."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            below = f"{prefix}.{key}" if prefix else str(key)
            yield from _differences(below, old.get(key, _ABSENT), new.get(key, _ABSENT))
    elif not _same(old, new):
        yield prefix, old, new


def _same(old: Any, new: Any) -> bool:
    """Whether the config says the same twice: NaN is NaN, `true` is not 1."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_same(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, float) and isinstance(new, float) and math.isnan(old):
        return math.isnan(new)
    return isinstance(old, bool) is isinstance(new, bool) and bool(old == new)


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
