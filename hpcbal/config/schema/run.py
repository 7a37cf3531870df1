"""The keys that every kind of run has: `RunConfig`, the base class of every kind's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hpcbal import env
from hpcbal.config.schema.section import (
    ARGS_ALLOWED,
    IMPORT_ALLOWED,
    MOST,
    NAME_ALLOWED,
    PATH_ALLOWED,
    DirectoryName,
    ImportPath,
    PathText,
    Section,
    is_directory_name,
    key,
    parse_bytes,
    parse_duration_s,
    wrong,
)
from hpcbal.errors import InputError
from hpcbal.kinds import DEFAULT_KIND

SCHEMA_VERSION = 1
MOST_BYTES = 2**50
MOST_RANKS_PER_NODE = 4096
SIZE_ALLOWED = "bytes as a whole number above 0, or text such as 256MiB"

Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str)]
Seconds = Annotated[float, BeforeValidator(parse_duration_s, json_schema_input_type=float | str)]
Count = Annotated[int, Field(ge=1, le=MOST)]


def _number(value: Any) -> Any:
    """Reject `true` and 1.0, which Python finds equal to 1."""
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


class DatasetConfig(Section):
    """A dataset: the core of every section that says where samples come from."""

    dataset: ImportPath = key("hpcbal.data:digits", "Callable that returns the dataset.", IMPORT_ALLOWED)
    args: Mapping[str, Any] = key({}, "Arguments of the dataset's callable.", ARGS_ALLOWED)


class SlotsConfig(Section):
    """How the ranks of a node are used."""

    per_node: Annotated[int, Field(ge=1, le=MOST_RANKS_PER_NODE)] | Literal["auto"] = key(
        "auto",
        "Training ranks per node; auto: the node's GPUs, or without GPUs one per core that has work.",
        "auto or a whole number, 1 or more",
    )
    device: Literal["auto", "gpu", "cpu"] = key(
        "auto",
        "What a slot computes on; auto: a GPU, or cores on a node without GPUs; cpu: cores although there "
        "are GPUs.",
        "auto, gpu, cpu",
    )
    ranks_per_node: int | None = key(
        None,
        "Split ranks that share memory into nodes of this many ranks, to try several nodes on one machine.",
        "null or a whole number, 2 or more",
        ge=2,
        le=MOST_RANKS_PER_NODE,
    )


class CheckpointConfig(Section):
    """How often state is saved."""

    interval_s: float = key(
        60.0,
        "Least time between two checkpoints of a DNN or job; 0: every epoch.",
        "seconds, 0 or more",
        ge=0.0,
    )
    keep: Literal["best", "last", "both"] = key(
        "both",
        "Weights that stay when a DNN or job is done: of its best epoch by its stop rule, its last, or both. "
        "Until then the last ones are always kept, to resume.",
        "best, last, both",
    )


class TimelineConfig(Section):
    """Limits on the record of each rank's time, timeline.json.gz."""

    max_bytes: Bytes = key(
        2**24,
        "Size limit of the file; above half of it only whole passes are recorded; 0: no timeline.",
        "bytes as a whole number, 0 or more, or text such as 16MiB",
        ge=0,
        le=MOST_BYTES,
    )
    steps_per_pass: int = key(
        16, "This many steps of each pass are recorded one by one.", "a whole number, 0 or more", ge=0
    )


def _expanded(value: str) -> str:
    """Replace variables of the environment, and a home directory's `~`, as in `data.args`."""
    try:
        found: str = env.expanded(value, "output.dir")
    except InputError as error:
        raise wrong("", str(error).removeprefix("output.dir: ")) from None
    return found


class OutputConfig(Section):
    """Where results go."""

    dir: Annotated[PathText, AfterValidator(_expanded)] = key(
        "runs/ensemble",
        "Output directory; runs/<name> if left out. $NAME stands for a variable of the environment.",
        PATH_ALLOWED,
        min_length=1,
    )


class RunConfig(Section):
    """The keys of every run; the configuration of each kind inherits from it. Frozen, picklable."""

    schema_version: Annotated[Literal[1], BeforeValidator(_number, json_schema_input_type=int)] = key(
        SCHEMA_VERSION, "Version of this format.", "1", alias="schema"
    )
    kind: str = key(DEFAULT_KIND, "Kind of the run.", DEFAULT_KIND)
    name: DirectoryName = key(
        DEFAULT_KIND, "Name of the run; the file's stem if left out.", NAME_ALLOWED, may_change=True
    )
    seed: int = key(0, "Seed of every random choice.", "a whole number from 0 to 2**32 - 1", ge=0, lt=2**32)
    output: OutputConfig = key(
        None, "Where results go.", "keys of output", default_factory=OutputConfig, may_change=True
    )
    walltime: Seconds | None = key(
        None,
        "The allocation's time limit; the run stops cleanly before it.",
        "null, seconds above 0, or 'HH:MM:SS'",
        gt=0.0,
        may_change=True,
    )
    stall_timeout_s: float = key(
        600.0,
        "The run ends with code 70 if nothing happens for this long.",
        "seconds, 1 or more",
        ge=1.0,
        may_change=True,
    )
    preflight: bool = key(
        False,
        "Check memory, files, devices, sums, clocks and speed on all nodes before the run starts, as "
        "'hpcbal doctor' does.",
        "true or false",
        may_change=True,
    )
    slots: SlotsConfig = key(
        None, "How ranks are used.", "keys of slots", default_factory=SlotsConfig, may_change=True
    )
    checkpoint: CheckpointConfig = key(
        None,
        "How often state is saved.",
        "keys of checkpoint",
        default_factory=CheckpointConfig,
        may_change=True,
    )
    timeline: TimelineConfig = key(
        None,
        "What is recorded of each rank's time.",
        "keys of timeline",
        default_factory=TimelineConfig,
        may_change=True,
    )

    @property
    def computed_by(self) -> str:
        """Return what computes the steps: runs with another answer are predicted in another way."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _default_output(cls, value: Any) -> Any:
        """Derive `output.dir` from the name if it is not given."""
        if not isinstance(value, Mapping):
            return value
        output = value.get("output")
        if output is None or (isinstance(output, Mapping) and "dir" not in output):
            name = value.get("name", DEFAULT_KIND)
            if isinstance(name, str) and is_directory_name(name):  # else the name is refused, once
                return {**value, "output": {**(output or {}), "dir": f"runs/{name}"}}
        return value
