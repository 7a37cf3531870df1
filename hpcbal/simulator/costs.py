"""What a run costs besides the passes themselves: starting, saving, deciding, measuring."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from hpcbal.errors import InputError


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a simulated run spends beside training; all 0 is a machine without friction.

    Attributes:
        build_s: from the start of a round until a DNN that has never run here trains: the network is built.
        load_s: likewise for a DNN that has been trained before, on other GPUs: its checkpoint is read.
            A DNN that goes on where it was needs neither.
        start_s: by DNN, in place of `build_s` and `load_s`, where it was measured.
        form_s: until the groups and the stream of a round stand, before anything is built or loaded.
        checkpoint_s: from the order to leave a round until the checkpoint is on disk and the GPUs are free.
        snapshot_s: how long a checkpoint that is written while training goes on holds the group up.
        pass_s: of each group in each pass: the first block, the report, the order to go on.
        scheduling_s: to form and place one flotilla ([FLEET] Table 4).
        profile_start_s: of each profiling run, before its first batch.

    Raises:
        InputError: a cost is negative or not a number.
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
        """Seconds until a DNN trains that was not on these GPUs before."""
        return self.start_s.get(dnn_id, self.build_s if is_new else self.load_s)


COST_NAMES = tuple(item.name for item in fields(Costs) if item.name != "start_s")
"""Those that hold for all DNNs."""
