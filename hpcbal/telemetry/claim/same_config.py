"""Compare the configs of two starts of a run: some keys may differ, the others must not."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hpcbal.errors import OutputError
from hpcbal.kinds import KINDS, MayChange
from hpcbal.safe_text import shortened
from hpcbal.telemetry.files.atomic_file import read_file, write_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory


def read_removed(run: RunDirectory) -> Mapping[str, Any]:
    """The configs of all jobs that earlier starts have removed, by name; those that came back are included.

    Raises:
        OutputError: if the file is damaged.
    """
    import yaml

    path = run.removed_jobs
    try:
        found = yaml.safe_load(read_file(path).decode()) if path.exists() else {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        found = error
    if not isinstance(found, Mapping) or not all(isinstance(job, Mapping) for job in found.values()):
        raise OutputError(
            f"{path}: damaged; restore it, or remove it if no removed job comes back under its old name"
        )
    return {str(name): job for name, job in found.items()}


def write_removed(run: RunDirectory, jobs: Mapping[str, Any]) -> None:
    """Replace the file.

    Raises:
        OutputError: if the file cannot be written.
    """
    import yaml

    text = yaml.safe_dump(dict(jobs), sort_keys=False, allow_unicode=True)
    write_atomic(run.removed_jobs, text, durable=True)


_MAX_SHOWN = 8
_MAX_CHARACTERS = 60  # of a value


@dataclass(frozen=True, slots=True)
class Changes:
    """How the config of a start differs from that of the run, in ways that are allowed.

    Attributes:
        keys: dotted keys that differ.
        added: names of jobs that are new in the file.
        removed: jobs that the file no longer has, with their configs, by name.
        grown: the key of jobs that has grown; empty if none has.
        moved: keys of paths of the data that differ.
    """

    keys: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: Mapping[str, Any] = field(default_factory=dict)
    grown: str = ""
    moved: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys or self.added or self.removed)

    def in_words(self) -> str:
        """Describe the differences for a log; empty if only the name of the directory differs."""
        keys = [key for key in self.keys if not key.startswith("output.")]
        parts = (
            f"with {_listed(self.added)} added" if self.added else "",
            f"without {_listed(self.removed)}, whose files stay" if self.removed else "",
            f"with changed {', '.join(keys)}" if keys else "",
            f"from now on {self.grown} cannot be lowered again" if self.grown else "",
        )
        return "; ".join(part for part in parts if part)


def is_same_config(before: str, now: str) -> bool:
    """Whether two resolved configs are equal, in any order of keys; False if the first one is damaged."""
    if before == now:
        return True
    try:
        old = _parse(before)
    except ValueError:
        return False
    return next(_differences("", *_comparable(old, _parse(now))), None) is None


def check_same(root: Path, before: str, now: str, removed_before: Mapping[str, Any]) -> Changes:
    """Compare the config of a run with that of a start that is to resume it.

    Args:
        root: the output directory of the run.
        before: the resolved config of the run.
        now: the resolved config of this start.
        removed_before: configs of jobs that earlier starts removed, by name. One that is back in the file
            must be as it was.

    Returns:
        What differs and may differ.

    Raises:
        OutputError: if a key differs that must not, a new job's name differs from another's only in case, or
            `before` is damaged.
    """
    try:
        old = _parse(before)
    except ValueError as error:
        raise damaged_config(root / "config.yaml", str(error)) from error
    old, new = _comparable(old, _parse(now))
    rule = KINDS[new["kind"]].file.may_change
    jobs_before, jobs_now = _jobs_of(old, rule), _jobs_of(new, rule)
    known = {**removed_before, **jobs_before}
    _check_case(root, rule.jobs, known, jobs_now)
    allowed: list[str] = []
    moved: list[str] = []
    refused: list[tuple[str, Any, Any]] = []
    for key, given_before, given_now in _differences("", _without(rule.jobs, old), _without(rule.jobs, new)):
        may_differ = key not in rule.but_not and _is_below(key, rule.keys)
        is_moved = _is_below(key, rule.paths) and _is_path(given_before) and _is_path(given_now)
        moved += [key] if is_moved else []
        allowed.append(key) if may_differ or is_moved else refused.append((key, given_before, given_now))
    for name, job in jobs_now.items():
        for key, given_before, given_now in _differences("", known.get(name, job), job):
            whole_key = f"{rule.jobs}.{name}.{key}"
            if _is_below(key, rule.of_job) or (key == rule.may_grow and _has_grown(given_before, given_now)):
                allowed.append(whole_key)
            else:
                refused.append((whole_key, given_before, given_now))
    if refused:
        exact = [leaf for each in refused for leaf in _differences(*each, in_lists=True)]
        shown = "\n".join(f"  {key}: {_was_and_is(a, b)}" for key, a, b in exact[:_MAX_SHOWN])
        more = f"\n  and {len(exact) - _MAX_SHOWN} more" if len(exact) > _MAX_SHOWN else ""
        raise OutputError(
            f"{root}: holds a run with another config. Undo these changes, or choose another directory with "
            f"--output:\n{shown}{more}\n{_what_may_change(rule)}"
        )
    return Changes(
        tuple(allowed),
        added=tuple(name for name in jobs_now if name not in jobs_before),
        removed={name: job for name, job in jobs_before.items() if name not in jobs_now},
        grown=rule.may_grow if any(key.endswith(f".{rule.may_grow}") for key in allowed) else "",
        moved=tuple(moved),
    )


def _check_case(root: Path, jobs: str, known: Iterable[str], now: Iterable[str]) -> None:
    """Raise OutputError if a new name would share a folder with a known one where case does not count."""
    by_folded = {name.casefold(): name for name in known}
    for name in now:
        other = by_folded.get(name.casefold(), name)
        if other != name:
            raise OutputError(
                f"{root}: {jobs}: {name!r} differs only in case from {other!r}, whose files are in this "
                "directory; some file systems would keep both in one folder. Choose another name, or take "
                f"{other!r} back"
            )


def damaged_config(path: Path, reason: str) -> OutputError:
    """The error about a run's config that cannot be read, or is missing."""
    return OutputError(
        f"{path}: {reason}, so this run cannot be resumed safely; write it again from the configuration of "
        f"the run, if that is unchanged ('hpcbal validate --resolved CONFIG > {path}'), or choose another "
        "directory with --output"
    )


def _parse(text: str) -> Mapping[str, Any]:
    """The values of a config; raises ValueError, with one clause, if it is damaged."""
    import yaml

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        raise ValueError(f"damaged (no YAML{place})") from error
    except (ValueError, RecursionError) as error:  # no such date, more digits than Python reads, deep nesting
        raise ValueError("damaged (no YAML of hpcbal)") from error
    if not isinstance(values, Mapping):
        raise ValueError("damaged (no keys)")
    return values


def _what_may_change(rule: MayChange) -> str:
    if not rule.jobs:
        return f"These may change when a run is resumed: {', '.join(rule.keys)}."
    but_not = f" (but not {' or '.join(rule.but_not)})" if rule.but_not else ""
    may_grow = f", and {rule.may_grow} if it grows" if rule.may_grow else ""
    but_not += f", paths in {' and '.join(rule.paths)} to the same data" if rule.paths else ""
    plural = f"{rule.job[0].upper()}{rule.job[1:]}s"
    return (
        f"These may change when a run is resumed: {', '.join(rule.keys)}{but_not}; "
        f"of a {rule.job} {', '.join(rule.of_job)}{may_grow}. {plural} may be added and removed; to train a "
        f"{rule.job} with other settings, add it under another name."
    )


def _is_below(key: str, prefixes: Iterable[str]) -> bool:
    return any(f"{key}.".startswith(f"{prefix}.") for prefix in prefixes)


def _is_path(value: Any) -> bool:
    """Whether a value may be a path, or paths; which data they lead to, only the fingerprint shows."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_path, value))
    return isinstance(value, str) and ("/" in value or value[:1] in ("~", "$") or bool(Path(value).suffix))


def _has_grown(before: Any, now: Any) -> bool:
    return isinstance(before, int) and isinstance(now, int) and now > before


def _comparable(*configs: Any) -> tuple[Any, ...]:
    """The configs with their jobs by name, so that a difference names the job."""
    return tuple(
        _by_name(_with_exact(config)) if isinstance(config, Mapping) else config for config in configs
    )


def _with_exact(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with `exact: true` where `decode` lacks the key: runs from before it decoded every pixel."""
    steps = config.get("preprocessing")
    if not isinstance(steps, list):
        return config
    return {**config, "preprocessing": [_step_with_exact(step) for step in steps]}


def _step_with_exact(step: Any) -> Any:
    decode = step.get("decode") if isinstance(step, Mapping) else None
    return {**step, "decode": {"exact": True, **decode}} if isinstance(decode, Mapping) else step


_ABSENT = object()


def _by_name(config: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = KINDS.get(str(config.get("kind")))
    key = "" if kind is None else kind.file.may_change.jobs
    listed = config.get(key)
    if not isinstance(listed, list):
        return config
    names = [str(job.get("name", i) if isinstance(job, Mapping) else i) for i, job in enumerate(listed)]
    return {**config, key: dict(zip(names, listed, strict=True))}


def _jobs_of(config: Any, rule: MayChange) -> Mapping[str, Any]:
    """The jobs of a comparable config, by name; none if the config is damaged."""
    jobs = config.get(rule.jobs) if isinstance(config, Mapping) else None
    return jobs if isinstance(jobs, Mapping) else {}


def _without(key: str, config: Any) -> Any:
    return {k: v for k, v in config.items() if k != key} if isinstance(config, Mapping) else config


def _differences(prefix: str, old: Any, new: Any, in_lists: bool = False) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, value before, value now) for every leaf that differs, also `in_lists`.

    A key that was absent and is null does not differ: an earlier hpcbal without that key wrote the config.
    """
    if in_lists and isinstance(old, list) and isinstance(new, list):
        both = range(1, 1 + min(len(old), len(new)))
        equal_at_end = next((n - 1 for n in both if not _same(old[-n], new[-n])), len(both))
        old, new = (dict(enumerate(each[: len(each) - equal_at_end])) for each in (old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            below = f"{prefix}.{key}" if prefix else str(key)
            yield from _differences(below, old.get(key, _ABSENT), new.get(key, _ABSENT), in_lists)
    elif not (_same(old, new) or (old is _ABSENT and new is None)):
        yield prefix, old, new


def _same(old: Any, new: Any) -> bool:
    """Whether two values of a config are equal; NaN equals NaN, but `true` does not equal 1."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_same(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, float) and isinstance(new, float) and math.isnan(old):
        return math.isnan(new)
    return isinstance(old, bool) is isinstance(new, bool) and bool(old == new)


def _listed(names: Collection[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join([*islice(names, _MAX_SHOWN), *([f"{more} more"] if more > 0 else [])])


def _was_and_is(old: Any, new: Any) -> str:
    """Return two values as in the file, in one line, without the middle of what they have in common."""
    texts = [_text(old), _text(new)]
    texts = texts if texts[0] != texts[1] else [repr(old), repr(new)]  # which differ in white space
    common = next((n for n, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    if common > 20 and max(map(len, texts)) > _MAX_CHARACTERS:
        texts = [f"...{text[common - 20 :]}" for text in texts]
    return "was {}, is {}".format(*(shortened(text, _MAX_CHARACTERS) for text in texts))


def _text(value: Any) -> str:
    import yaml

    if value is _ABSENT:
        return "absent"
    written = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1e9)
    return " ".join(written.removesuffix("...\n").split())
