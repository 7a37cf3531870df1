"""Lists in files, with their sweeps and defaults: DNNs of an ensemble, jobs that share machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpcbal.config.callables import APP, MODEL, Contract
from hpcbal.config.schema.dnn import DnnConfig, StopConfig
from hpcbal.config.schema.document import DEFAULT_KEYS, JOB_DEFAULT_KEYS
from hpcbal.config.schema.jobs import SharedJobConfig
from hpcbal.config.schema.objective import LossConfig
from hpcbal.config.schema.optimizer import OptimizerConfig, ScheduleOfRateConfig
from hpcbal.config.schema.paramserver import BlocksConfig, ObjectiveConfig, PsStopConfig
from hpcbal.config.schema.run import DatasetConfig
from hpcbal.config.schema.section import Section
from hpcbal.config.source.meant import Candidate, hint_of, meant


@dataclass(frozen=True)
class Listed:
    """The list at one of the top-level keys of a kind of file.

    Attributes:
        key: the top-level key.
        one: what users call an item.
        item: the section of an item.
        called: key of an item that names a callable; the item's `args` are its arguments.
        contract: how that callable is called.
        sections: sections of an item by dotted key.
        default_keys: keys of an item that `defaults` may hold.
        have_a_name: keys of sections that belong to what their `name` says, so that they are not completed.
        may_be_a_name: keys of sections that may be written as the name alone: `cosine` for `{name: cosine}`.
        example: a dotted key that users may sweep.
        by_output: keys of an item that may be a mapping by the names of outputs.
    """

    key: str
    one: str
    item: type[Section]
    called: str
    contract: Contract
    sections: Mapping[str, type[Section]]
    default_keys: tuple[str, ...]
    have_a_name: tuple[str, ...]
    may_be_a_name: tuple[str, ...]
    example: str
    by_output: tuple[str, ...] = ()

    def problem_of_swept(self, key: str, arguments: Collection[str] | None) -> str | None:
        """Return the error in a swept key's dotted name; None if items have the key, or if a value decides.

        Args:
            key: dotted.
            arguments: names that `args` of the callable may have; None if they are unknown.
        """
        if key == "name" or key.split(".")[0] in self.item.sweep_keys:
            return f"allowed: keys of a {self.one} other than name, e.g. {self.example}"
        if self._exists(key):
            return None
        others = [name for name in self.item.model_fields if name not in ("name", "args", *self.sections)]
        sections = [f"{name}.KEY" for name in self.sections]
        hint = self._meant(key, arguments)
        return f"unknown key{hint}, allowed: args.NAME, {', '.join([*others, *sections])}"

    def _exists(self, key: str) -> bool:
        """Whether an item has this dotted key; keys below one that is no section are left to its value."""
        first, *_ = way = key.split(".")
        if first not in self.item.model_fields:
            return False
        return all(
            way[depth] in section.model_fields
            for depth in range(1, len(way))
            if (section := self.sections.get(".".join(way[:depth]))) is not None
        )

    def _meant(self, key: str, arguments: Collection[str] | None) -> str:
        """` (did you mean 'stop.target'?)` for an unknown swept key, or nothing."""
        known = sorted(self._known(), key=lambda each: each.count("."))
        candidates = [Candidate(each, each, False) for each in known]
        candidates += [Candidate(f"args.{name}", f"args.{name}", True) for name in arguments or ()]
        return hint_of(meant(key, candidates, takes_any_argument=arguments is None))

    def _known(self) -> tuple[str, ...]:
        """Dotted names of all keys of an item but the arguments of its callable."""
        keys = [key for key in self.item.model_fields if key not in self.sections]
        inner = (f"{name}.{key}" for name, section in self.sections.items() for key in section.model_fields)
        return (*keys, *inner)


DNNS = Listed(
    key="dnns",
    one="DNN",
    item=DnnConfig,
    called="model",
    contract=MODEL,
    sections={
        "optimizer": OptimizerConfig,
        "optimizer.schedule": ScheduleOfRateConfig,
        "stop": StopConfig,
        "loss": LossConfig,
    },
    default_keys=DEFAULT_KEYS,
    have_a_name=("optimizer", "schedule", "loss"),
    may_be_a_name=("schedule", "loss"),
    example="args.depth",
    by_output=("loss",),
)
JOBS = Listed(
    key="jobs",
    one="job",
    item=SharedJobConfig,
    called="app",
    contract=APP,
    sections={
        "data": DatasetConfig,
        "stop": PsStopConfig,
        "objective": ObjectiveConfig,
        "blocks": BlocksConfig,
    },
    default_keys=JOB_DEFAULT_KEYS,
    have_a_name=(),
    may_be_a_name=(),
    example="args.rank",
)
LISTED: Mapping[type, Listed] = {each.item: each for each in (DNNS, JOBS)}
"""By the section of an item."""
