"""The time for which a DNN holds slots, and how they are used meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcbal.report.model import SpanKind
from hpcbal.telemetry.ledger import RankFacts, Straggler


@dataclass
class Epoch:
    """One epoch of the ledger; `end_s` is on the report's time axis, `trained_s` is the time of its steps."""

    end_s: float
    seconds: float
    wait_s: float
    pass_index: int
    samples: float
    trained_s: float = 0.0
    straggler: Straggler | None = None
    ranks: RankFacts | None = None


@dataclass
class Hold:
    """A DNN holds slots, from the order to start until it has left them.

    Attributes:
        kind: whether it trains or is profiled.
        round_index: index of the round; None outside of rounds.
        end_s: when it left the slots; None while it holds them.
        held_s: seconds for which checkpoints kept it from training.
        to_leave: whether it was asked to leave after a whole pass.
    """

    dnn: str
    gpus: tuple[int, ...]
    start_s: float
    kind: SpanKind
    round_index: int | None = None
    end_s: float | None = None
    epochs: list[Epoch] = field(default_factory=list)
    held_s: float = 0.0
    to_leave: bool = False

    def seconds_by_use(self) -> dict[str, float]:
        """The time from `start_s` to `end_s` (which must be known), split by USE_KINDS."""
        assert self.end_s is not None
        total = max(0.0, self.end_s - self.start_s)
        if self.kind == "profiling":
            return {"profiling": total}
        left = total
        seconds: dict[str, float] = {}

        def take(kind: str, wanted: float) -> None:
            nonlocal left
            seconds[kind] = min(left, max(0.0, wanted))
            left -= seconds[kind]

        take("training", sum(epoch.seconds - epoch.wait_s for epoch in self.epochs))
        take("data", sum(epoch.wait_s for epoch in self.epochs))
        take("checkpoint", self.held_s)
        if self.epochs:
            take("starting", self.epochs[0].end_s - self.epochs[0].seconds - self.start_s)
            if not self.to_leave:  # the last pass was not completed
                seconds["training"] += min(left, max(0.0, self.end_s - self.epochs[-1].end_s))
                left = max(0.0, left - (self.end_s - self.epochs[-1].end_s))
            take("peers", left)
        else:
            seconds["training"] += left
        return seconds
