"""Fill the template of a system with a job: text in, text out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

from hpcbal.cluster.systems.job import OF_ARRAYS, OF_THIS_JOB, BatchJob, System
from hpcbal.errors import InputError

_PLACE = re.compile(r"@([a-z_0-9]+)@")
_BEGINNING = "the beginning of its script"
_PLAIN = re.compile(r"[\w@%+=:,./\[\]()&!*-]+", re.ASCII)


def render(system: System, job: BatchJob, file: str = "") -> str:
    """Return the script of a job.

    Args:
        system: where it runs.
        job: the job.
        file: name of the script, for its comments, if it is one that is shipped.

    Raises:
        InputError: if a value cannot be written into a script, such as one with a newline.
    """
    values = _values(system, job, file)
    body = fill(template("body"), values)
    return fill(template(system.name), {**values, "body": body.rstrip("\n")})


def render_compare(system: System, job: BatchJob, directory: str) -> str:
    """Return the script of a small job that compares runs.

    Args:
        system: where it runs.
        job: the job, with the words to compare.
        directory: where relative paths start.
    """
    return fill(template("compare"), {**_values(system, job), "directory": word(directory)})


def _values(system: System, job: BatchJob, file: str = "") -> dict[str, str | None]:
    """Return what takes the places of a template."""
    return {
        "options": "\n".join(system.options(job)),
        "general": "" if not job.tasks else None,
        "submitted": "" if job.tasks else None,
        "tasks": _tasks(job),
        "modules": words(job.site.modules),
        "launcher": word(job.site.launcher or system.launchers[0]),
        "container": words(job.site.container),
        "launcher_options": words(job.site.launcher_options),
        "venv": word(job.site.venv) if job.site.venv else None,
        "max_restarts": str(job.max_restarts),
        "numbers": "\n".join(f"{n.upper()}={getattr(job, n) or 0}" for n in system.numbers) or None,
        **{name: template(name).rstrip("\n") for name in ("guard", "environment", "watch")},
        "watching": "" if system.watches else None,
        "compares": "" if system.watches and job.compare else None,
        "compare": words(job.compare),
        "log": word(job.log or system.log_name(job.is_array)),
        "system": system.name,
        "question": _question(system),
        "time_s": str(job.time_s),
        "lead_s": str(job.lead_s),
        "cancel": word(job.cancel),
        "before": _before(job.site.before),
        "after": _after(job.site.after),
        "file": file,
        **{name: text.replace("FILE", file) for name, text in system.texts.items()},
        "code_to_end": str(system.code_to_end(job)),
    }


def fill(text: str, values: Mapping[str, str | None]) -> str:
    """Replace each `@name@`; a line with one whose value is None is left out.

    Values are not searched for further names.
    """
    lines = []
    for line in text.splitlines():
        names = _PLACE.findall(line)
        if all(values[name] is not None for name in names):
            lines.append(_PLACE.sub(lambda found: values[found[1]] or "", line))
    return "\n".join(lines) + "\n"


@cache
def template(name: str) -> str:
    """Return the text of a template."""
    return (files(__package__) / "templates" / f"{name}.sh").read_text(encoding="utf-8")


def word(text: str) -> str:
    """Return a word as the shell reads it back.

    Raises:
        InputError: if it has a newline or another character that cannot be printed.
    """
    if not text.isprintable():
        raise InputError(
            f"got {text!r}, allowed in a job script: printable characters, and no newline; rename the file "
            "or change the value"
        )
    return shlex.quote(text)


def words(given: Iterable[str]) -> str:
    """Return several words as the shell reads them back."""
    return " ".join(map(word, given))


def option_words(given: Sequence[str]) -> str:
    """Return the words of an option for the head of a script, which the batch system reads and no shell.

    The systems agree on words in double quotes, and on nothing inside of them.

    Raises:
        InputError: if a word has quotes, backslashes or what cannot be printed.
    """
    for text in given:
        if not text.isprintable() or set(text) & set("\"'\\`$"):
            raise InputError(
                f"got {text!r}, allowed in an option of a batch job: printable characters without quotes, "
                "backslashes and $"
            )
    return " ".join(text if _PLAIN.fullmatch(text) else f'"{text}"' for text in given)


def directives(prefix: str, options: Iterable[Sequence[str]]) -> list[str]:
    """Return lines for the head of a script, one for each option."""
    return [f"{prefix} {option_words(option)}" for option in options]


def site_options(given: Sequence[str]) -> list[list[str]]:
    """Group the words of options: each that begins with `-` begins a line."""
    groups: list[list[str]] = []
    for text in given:
        if text.startswith("-") or not groups:
            groups.append([text])
        else:
            groups[-1].append(text)
    return groups


def long_options(*names: str) -> str:
    """Return a pattern for options that begin with `--`, which may be cut short and have a value."""
    prefixes = {name[:length] for name in names for length in range(1, len(name) + 1)}
    return f"--(?:{'|'.join(sorted(prefixes))})(?=[ =]|$)"


def check_site_options(system: System, given: Sequence[str]) -> None:
    """Refuse options of a site that hpcbal itself gives, such as nodes, time, arrays and the log.

    Raises:
        InputError: if there is one; scripts and predictions would go by other numbers than the job.
    """
    for option in map(" ".join, site_options(given)):
        for pattern, instead in system.own_options.items():
            if re.match(pattern, option):
                raise InputError(
                    f"got {option!r} among the options of the site, allowed: those that leave nodes, ranks, "
                    "time, order and log to hpcbal submit, whose script, prediction and status depend on "
                    f"them; use {instead}"
                )


def clock(time_s: float, *, seconds: bool = True) -> str:
    """Return a time limit as `H:MM:SS`, or as `H:MM`, rounded up to minutes."""
    minutes = -(-int(time_s) // 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{text}:00" if seconds else text


def folder_of(path: str) -> str:
    """Return the folder of a file, with a slash at its end."""
    return f"{path.rpartition('/')[0]}/"


def _question(system: System) -> str:
    """Return the command by which a script asks for its job, whose identifier it knows when it runs."""
    asked = system.question(())
    environ = [f"{name}={value}" for name, value in {"LC_ALL": "C", **asked.environ}.items()]
    return " ".join([*environ, "timeout 30", words(asked.words), '"$id"'])


def _tasks(job: BatchJob) -> str | None:
    """Return the lines that set the words of a task, and its output directory."""
    if not job.tasks:
        return None
    sets = [
        f"words=({words(task)}) output={word(output)}"
        for task, output in zip(job.tasks, job.outputs, strict=True)
    ]
    if not job.is_array:
        return sets[0]
    return "\n".join(["case $task in", *(f"{n}) {line} ;;" for n, line in enumerate(sets, 1)), "esac"])


def _before(lines: Sequence[str]) -> str | None:
    """Return the site's lines in front of a run; the script's guard names one that ends the job."""
    if not lines:
        return None
    begin, end = (f"doing={shlex.quote(what)}" for what in ("a line of before in the site file", _BEGINNING))
    return "\n".join([begin, *map(_line, lines), end])


def _after(lines: Sequence[str]) -> str | None:
    """Return the site's lines behind a run, which change neither the script's variables nor its end.

    A job that one of them submits would inherit the variables of this job.
    """
    if not lines:
        return None
    failed = 'echo "a line of after in the site file has failed with $? (last command: $BASH_COMMAND)" >&2'
    unset = f'  unset {" ".join(OF_THIS_JOB)} "${{!{OF_ARRAYS}@}}"'
    before = ["set +e", "(", f"  trap '{failed}' ERR", unset]
    return "\n".join([*before, *map(_line, lines), ")", "set -e"])


def _line(text: str) -> str:
    """Return a line of the shell, from the site file."""
    if "\n" in text or "\0" in text:
        raise InputError(f"got {text!r}, allowed: one line of the shell in each item")
    return text
