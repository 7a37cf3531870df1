"""The runs of a command line: one, or those of an array."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path

from hpcbal import env
from hpcbal.cli.options import print_warning
from hpcbal.config import load_config
from hpcbal.config.load import AnyConfig
from hpcbal.errors import InputError

MOST_TASKS = 1000
"""Many sites allow no larger array."""

_SEEDS = re.compile(r"seeds=(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)")


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes:
        path: its file.
        config: the configuration.
        overrides: texts of `--set`.
        output: its output directory.
    """

    path: Path
    config: AnyConfig
    overrides: tuple[str, ...]
    output: Path

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of its command behind `hpcbal`."""
        changes = (word for each in self.overrides for word in ("--set", each))
        return ("run", path_word(self.path), *changes, "--output", path_word(self.output))


def path_word(path: Path) -> str:
    """Return a path as a word of a command line, where one that begins with `-` would be an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def tasks_of(args: argparse.Namespace) -> tuple[list[Task], Path, bool]:
    """Return the runs of a command line, the directory above them, and whether they are an array.

    Raises:
        InputError: if a configuration is wrong, an array has no runs, or two have one directory.
    """
    given, output = tuple(args.overrides), args.output or env.read("HPCBAL_OUTPUT")
    if args.array_of is not None:
        return _of_files(args, given)
    if args.config is None:
        raise InputError("no configuration: give CONFIG, or --array-of FILE...")
    if args.array is None:
        task = _task(args.config, given, output)
        return [task], task.output, False
    seeds = seeds_of(args.array)
    # The largest is the one that may not be allowed; all else is the same.
    one = _task(args.config, (*given, f"seed={max(seeds)}"), output)
    tasks = [
        _writing_to(
            one.output / f"seed-{seed}",
            Task(
                one.path, one.config.model_copy(update={"seed": seed}), (*given, f"seed={seed}"), one.output
            ),
        )
        for seed in seeds
    ]
    return tasks, one.output, True


def _of_files(args: argparse.Namespace, given: tuple[str, ...]) -> tuple[list[Task], Path, bool]:
    if args.config is not None or args.array is not None:
        raise InputError("--array-of names the configurations: give neither CONFIG nor --array beside it")
    if len(args.array_of) > MOST_TASKS:
        raise InputError(f"--array-of: got {len(args.array_of)} files, allowed: at most {MOST_TASKS}")
    tasks = [_task(path, given, None) for path in args.array_of]
    folder: Path = args.output or tasks[0].output.parent
    if args.output is not None:
        tasks = [_writing_to(folder / task.config.name, task) for task in tasks]
    taken: dict[Path, Task] = {}
    for task in tasks:
        if task.output in taken:
            raise InputError(
                f"{taken[task.output].path} and {task.path} both write to {task.output}; give them different "
                "names, or different output.dir"
            )
        taken[task.output] = task
    return tasks, folder, True


def _task(path: Path, overrides: tuple[str, ...], output: Path | str | None) -> Task:
    config = load_config(path, overrides, warn=print_warning, beforehand=True)
    folder = Path(output or config.output.dir)
    return _writing_to(folder, Task(path, config, overrides, folder))


def _writing_to(output: Path, task: Task) -> Task:
    """Return a task that writes to another directory, where the prediction then looks for earlier starts."""
    section = task.config.output.model_copy(update={"dir": str(output)})
    return replace(task, output=output, config=task.config.model_copy(update={"output": section}))


def seeds_of(text: str) -> list[int]:
    """Return the seeds of `seeds=0-9` or `seeds=1,3,5-7`.

    Raises:
        InputError: if the text has another form, no seeds, or too many.
    """
    found = _SEEDS.fullmatch(text)
    if found is None:
        raise InputError(
            f"--array: got {text!r}, allowed: seeds=0-9 or seeds=1,3,5-7; for runs that differ in other "
            "keys, write a file for each and give --array-of FILE..."
        )
    seeds: dict[int, None] = {}
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        if int(last or first) - int(first) >= MOST_TASKS or len(seeds) > MOST_TASKS:
            raise InputError(f"--array: got {text!r}, allowed: at most {MOST_TASKS} seeds")
        seeds.update(dict.fromkeys(range(int(first), int(last or first) + 1)))
    if not seeds:
        raise InputError(f"--array: got {text!r}, which has no seeds; write the smaller number first")
    if len(seeds) > MOST_TASKS:
        raise InputError(f"--array: got {text!r}, allowed: at most {MOST_TASKS} seeds")
    return list(seeds)
