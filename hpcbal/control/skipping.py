"""Skip passes of a simulated round in which nothing can be decided.

Between two decisions the passes of a round are all alike: the same groups read the same stream at the same
rates. A simulation that knows when the next DNN ends may therefore handle one of these passes and skip the
others. The skipped passes are in every history, but their events are not in the log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcbal.control.core import Core
from hpcbal.control.states import Phase
from hpcbal.values import EpochRecord


def skip_passes(core: Core, dnn_ids: Sequence[str], number: int) -> None:
    """Let groups be `number` passes further than they are.

    Args:
        dnn_ids: groups that train the same pass: all groups of the round, or one that trains alone.
        number: >= 0.

    Raises:
        ControlError: if a pass in between could be decided otherwise than by continuing: a stop rule has more
            than max_epochs or would apply, or some group stays behind.
    """
    s = core.state
    groups = [s.groups[dnn_id] for dnn_id in dnn_ids]
    passes = {group.training_pass for group in groups}
    is_whole = core.is_independent or (
        len(groups) == len(s.groups) and s.plan is not None and s.plan.last_pass is None
    )
    if core.settings.prune is not None:
        raise core.error(f"passes of {', '.join(dnn_ids)} cannot be skipped: one of them may be pruned")
    if s.phase is not Phase.ROUND or len(passes) != 1 or None in passes or not is_whole:
        raise core.error(
            f"passes of {', '.join(dnn_ids)} cannot be skipped: not all groups train the same pass"
        )
    for group in groups:
        dnn = s.dnns[group.dnn_id]
        rule = dnn.spec.stop
        if rule.patience is not None or rule.target is not None or dnn.epochs + number >= rule.max_epochs:
            raise core.error(
                f"{number} passes of {group.dnn_id} cannot be skipped: it may converge in one of them"
            )
    for group in groups:
        assert group.training_pass is not None
        dnn, first = s.dnns[group.dnn_id], group.training_pass
        metrics = {dnn.spec.stop.monitor: math.nan}
        begun = dnn.epochs
        dnn.history += [EpochRecord(begun + 1 + i, first + i, metrics, math.nan) for i in range(number)]
        group.training_pass, group.reported_pass = first + number, group.reported_pass + number
        s.next_pass = max(s.next_pass, first + number + 1)
        if not core.is_independent:
            s.pass_index = first + number
