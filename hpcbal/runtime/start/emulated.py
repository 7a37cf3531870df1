"""The emulated slot of one trainer, as the configuration describes it."""

from __future__ import annotations

from hpcbal.cluster.roles import Roles
from hpcbal.config import EnsembleConfig
from hpcbal.config.balance import balances_of
from hpcbal.training.emulated_backend import EmulatedBackend


def emulated_backend(
    config: EnsembleConfig, roles: Roles, slot: int, *, is_sized: bool = False
) -> EmulatedBackend:
    """Make the backend of the trainer on this slot.

    Args:
        slot: number of the slot; `backend.workers` are assigned in turn.
        is_sized: whether samples differ in size, so that the shares of a step differ in number.
    """
    workers = config.backend.workers
    return EmulatedBackend(
        config.backend.rates,
        roles.cluster.max_slots_per_node,
        config.backend.precision,
        workers[slot % len(workers)] if workers else None,
        by_share=[
            name for name, own in balances_of(config).items() if is_sized or not own.policy.splits_evenly
        ],
    )
