"""Costs of a run outside the passes: starting, saving, deciding, measuring."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from hpcbal.errors import InputError


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a simulated run spends outside training; all 0 is a machine without overheads.

    Attributes:
        build_s: from the start of a round until a DNN that never ran before trains: the network is built.
        load_s: the same for a DNN that was trained before on other slots: its checkpoint is read. A DNN that
            continues in place needs neither.
        start_s: by DNN, instead of `build_s` and `load_s`, where it was measured.
        form_s: until the groups and the stream of a round exist, before anything is built or loaded.
        checkpoint_s: from the order to leave a round until the checkpoint is on disk and the slots are free.
        snapshot_s: how long a checkpoint that is written during training blocks the group.
        pass_s: of each group in each pass: the first block, the report, the order to continue.
        scheduling_s: to form and place one flotilla ([FLEET] Table 4).
        profile_start_s: of each profiling run, before its first batch.

    Raises:
        InputError: if a cost is negative or not a number.
    """

    build_s: float = 0.0
    load_s: float = 0.0
    form_s: float = 0.0
    checkpoint_s: float = 0.0
    snapshot_s: float = 0.0
    pass_s: float = 0.0
    scheduling_s: float = 0.0
    profile_start_s: float = 0.0
    start_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in COST_NAMES}
        given |= {f"start_s.{dnn_id}": value for dnn_id, value in self.start_s.items()}
        for name, value in given.items():
            if not (math.isfinite(value) and value >= 0.0):
                raise InputError(f"costs.{name}: got {value!r}, allowed: seconds, 0 or more")

    def to_start(self, dnn_id: str, *, is_new: bool) -> float:
        """Seconds until a DNN that was not on these slots before trains."""
        return self.start_s.get(dnn_id, self.build_s if is_new else self.load_s)


COST_NAMES = tuple(item.name for item in fields(Costs) if item.name != "start_s")
"""Costs that apply to all DNNs."""
