"""The DNNs of an ensemble: the facts that scheduling needs, and events by which they join and leave."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.errors import InputError
from hpcbal.events.line import Event, Facts, Number

MODES = ("max", "min")


@dataclass(frozen=True, slots=True)
class StopRule(Facts):
    """When a DNN counts as converged; checked after every epoch.

    Attributes:
        monitor: metric in `EpochRecord.metrics` that target and patience use.
        mode: 'max' if larger is better, 'min' if smaller is better.
        min_delta: an epoch improves on the best one only if it is better by more than this, >= 0.
        patience: stop after this many epochs in a row without improvement, >= 1; None: never.
        target: stop once the metric is this good or better; None: never.
        max_epochs: stop after this many epochs whatever the metric, >= 1.

    Raises:
        InputError: if a value is out of its range.
    """

    monitor: str = "val_accuracy"
    mode: str = "max"
    min_delta: float = 0.0
    patience: int | None = None
    target: float | None = None
    max_epochs: int = 1

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"stop.mode: got {self.mode!r}, allowed: {', '.join(map(repr, MODES))}")
        if not (math.isfinite(self.min_delta) and self.min_delta >= 0):
            raise InputError(f"stop.min_delta: got {self.min_delta}, allowed: a finite number >= 0")
        if self.patience is not None and self.patience < 1:
            raise InputError(
                f"stop.patience: got {self.patience}, allowed: an integer >= 1, or null for never"
            )
        if self.target is not None and not math.isfinite(self.target):
            raise InputError(f"stop.target: got {self.target}, allowed: a finite number, or null for none")
        if self.max_epochs < 1:
            raise InputError(f"stop.max_epochs: got {self.max_epochs}, allowed: an integer >= 1")


@dataclass(frozen=True, slots=True)
class DnnSpec(Facts):
    """The facts about one DNN that scheduling needs.

    Attributes:
        dnn_id: unique name of the DNN.
        batch_size: samples per step over all its trainers, >= 1.
        stop: when the DNN is done.
        may_be_pruned: whether the pruning rule of the settings, if there is one, is for this DNN.
        ends_early: whether it may end before its max_epochs although `stop` does not say so; a simulation
            knows when it will, but decisions must not.
    """

    dnn_id: str
    batch_size: int
    stop: StopRule
    may_be_pruned: bool = True
    ends_early: bool = False

    @property
    def has_known_length(self) -> bool:
        """Whether it trains exactly max_epochs, unless it is pruned."""
        return self.stop.patience is None and self.stop.target is None and not self.ends_early


@dataclass(frozen=True, slots=True)
class DnnAdded(Event):
    """Written when a DNN joins a run that is under way, because the user (`hpcbal add`) or a search wants it.

    Attributes:
        spec: the DNN, as scheduling sees it.
        rates: rates that are known already, samples/s by number of slots.
        drawn: the values that a search has proposed for it, by key, as text; null if the user has added it.
    """

    event: ClassVar[str] = "dnn-added"
    spec: DnnSpec
    rates: Mapping[int, Number]
    drawn: Mapping[str, str] | None = None

    @property
    def dnn_id(self) -> str:
        """Name of the DNN."""
        return self.spec.dnn_id


@dataclass(frozen=True, slots=True)
class SearchEnded(Event):
    """Written when a search proposes no more DNNs, although it has not made all of its samples.

    Attributes:
        reason: the error; text for users.
    """

    event: ClassVar[str] = "search-ended"
    reason: str


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """Written when the user has asked to end DNNs of a run that is under way (`hpcbal stop`).

    Attributes:
        dnn_ids: the DNNs; those that have ended already are left as they are.
    """

    event: ClassVar[str] = "stop-asked"
    dnn_ids: tuple[str, ...]
