"""The site file: habits of a computing centre that every batch job of a user shares."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field, Strict, ValidationError

from hpcbal import env
from hpcbal.cluster.systems import SYSTEMS, SiteHabits, System
from hpcbal.cluster.systems.job import Run
from hpcbal.config.messages import explain
from hpcbal.config.schema.section import COUNT_OR_NULL_ALLOWED, Section, key
from hpcbal.config.source.yaml_source import read_yaml
from hpcbal.errors import ConfigError, InputError, OutputError

MOST_CORES = 65536
_NAME = "text without quotes, backslashes and $"
_WORDS = "a list of words, such as [apptainer, exec, --nv, /shared/hpcbal.sif]"
_LINES = "a list of lines of the shell"

Text = Annotated[str, Field(pattern=r"^[ -!#%&(-\[\]-_a-~]*$")]
"""Printable ASCII without quotes, backslashes and $: batch systems read such words in different ways."""
Word = Annotated[str, Field(pattern=r"\S")]
Words = Annotated[tuple[Word, ...], Strict(False)]
Lines = Annotated[tuple[str, ...], Strict(False)]


class SiteConfig(Section):
    """The keys of a site file; all of them are optional."""

    system: Literal["auto", "slurm", "pbs", "lsf", "flux"] = key(
        "auto", "The batch system; auto: the one that is found.", "auto, slurm, pbs, lsf or flux"
    )
    account: Text = key("", "Who pays: --account of Slurm, -A of PBS, -P of LSF, --bank of Flux.", _NAME)
    partition: Text = key("", "Where jobs wait: a partition of Slurm, a queue of the others.", _NAME)
    gpus_per_node: Annotated[int, Field(ge=0, le=MOST_CORES)] | None = key(
        None, "GPUs of a node.", "null or a whole number, 0 or more"
    )
    cores_per_node: Annotated[int, Field(ge=1, le=MOST_CORES)] | None = key(
        None, "Cores of a node, which its ranks share evenly.", COUNT_OR_NULL_ALLOWED
    )
    exclusive: bool = key(True, "Whether no other job may be on the nodes.", "true or false")
    modules: Words = key((), "Modules to load, as for the set-up.", "a list of names")
    venv: Annotated[str, Field(pattern=r"^([/~].*)?$")] = key(
        "", "The environment with hpcbal; empty: the one that submits.", "a directory that begins with / or ~"
    )
    container: Words = key((), "Words that start a command in a container.", _WORDS)
    launcher: Literal["", "srun", "mpirun", "mpiexec", "jsrun", "flux"] = key(
        "", "What starts the ranks; empty: the usual one of the system.", "srun, mpirun, mpiexec, jsrun, flux"
    )
    launcher_options: Words = key((), "More options of the launcher.", "a list of words")
    options: Words = key((), "More options of each job.", "a list of words, such as [--qos=normal]")
    before: Lines = key((), "Lines in front of the modules.", _LINES)
    after: Lines = key((), "Lines once the run has ended.", _LINES)

    def habits(self, venv: str, options: tuple[str, ...]) -> SiteHabits:
        """Return what job scripts hold of this.

        Args:
            venv: the environment if the file names none.
            options: options of this job, which come last and win.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(SiteHabits)}
        values["venv"] = "" if self.container else os.path.expanduser(self.venv) or venv
        values["container"] = tuple(map(os.path.expanduser, self.container))
        values["options"] = (*self.options, *options)
        return SiteHabits(**values)


def site_file() -> Path:
    """Return the place of the site file: $HPCBAL_SITE, else that in the home directory."""
    return Path(env.read("HPCBAL_SITE") or Path.home() / ".config" / "hpcbal" / "site.yaml")


def load_site() -> SiteConfig:
    """Read and check the site file; without one, every key has its default.

    Raises:
        ConfigError: with every problem that was found, or because HPCBAL_SITE names a file that is not there.
    """
    path = site_file()
    if env.read("HPCBAL_SITE") is None and not path.exists():
        return SiteConfig()
    if not path.exists():
        raise ConfigError(
            [
                f"{path}: no such file, but HPCBAL_SITE names it; write a first one with 'hpcbal submit "
                "--write-site', or unset HPCBAL_SITE"
            ]
        )
    root = read_yaml(path, may_be_empty=True, keys="account, partition")
    try:
        return SiteConfig.model_validate(root.plain() or {})
    except ValidationError as error:
        found = explain(error.errors(include_url=False, include_input=False), root, SiteConfig)
        raise ConfigError(found) from None


def new_site_file(found: SiteConfig) -> str:
    """Return the text of a first site file: what was found, and all other keys as comments."""
    lines = [
        "# Habits of this site, for `hpcbal submit`. A key without # is what was found here: check it.",
        "",
    ]
    for name, field in SiteConfig.model_fields.items():
        value = getattr(found, name)
        lines.append(f"# {field.description}")
        lines.append(f"{'# ' if value == field.default else ''}{name}: {_yaml(value)}")
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    shown = list(value) if isinstance(value, tuple) else value
    return json.dumps(shown, ensure_ascii=False)


def write_site(system: System, environ: Mapping[str, str], run: Run) -> Path:
    """Write a first site file, with what is found here, and return its path.

    Args:
        system: the batch system.
        environ: of this process.
        run: runs a command of the system.

    Raises:
        OutputError: if there is a file, or it cannot be written.
    """
    path = site_file()
    taken = f"{path}: is there already, and is not overwritten; edit it, or move it away"
    if path.exists():
        raise OutputError(taken)
    facts = system.look(run)
    found = SiteConfig(
        system=cast(Any, system.name),
        partition=facts.partition,
        gpus_per_node=facts.gpus_per_node,
        cores_per_node=facts.cores_per_node,
        launcher=cast(Any, facts.launcher),
        modules=tuple(each for each in environ.get("LOADEDMODULES", "").split(":") if each),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(new_site_file(found))
    except OSError as error:
        if path.exists():  # another process was quicker
            raise OutputError(taken) from None
        raise OutputError(f"{path}: cannot write: {error.strerror or error}; set HPCBAL_SITE") from error
    return path


def check_venv(site: SiteConfig) -> None:
    """Refuse an environment that is not there: its job would wait in the queue, and end at once.

    Raises:
        InputError: if it has no hpcbal.
    """
    if site.container or not site.venv:
        return
    program = Path(os.path.expanduser(site.venv)) / "bin" / "hpcbal"
    if not program.exists():
        raise InputError(
            f"{site_file()}: venv: got {site.venv!r}, but {program} is not there, allowed: an environment "
            "that scripts/setup.sh has made, on a file system that all nodes share"
        )


def check_launcher(site: SiteConfig, system: str) -> None:
    """Refuse a launcher that the system does not have.

    Raises:
        InputError: if it is another system's.
    """
    allowed = SYSTEMS[system].launchers
    if site.launcher and site.launcher not in allowed:
        raise InputError(
            f"{site_file()}: launcher: got {site.launcher!r}, allowed with {system}: {', '.join(allowed)}"
        )
