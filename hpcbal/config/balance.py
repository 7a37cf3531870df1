"""Resolve how the steps of one DNN are shared out: by its own keys, or else by those of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.ensemble import BalanceConfig, EnsembleConfig

if TYPE_CHECKING:  # importing this module must not load NumPy
    from hpcbal.policies.batching import BatchingPolicy

    Policy: TypeAlias = BatchingPolicy[Any]


@dataclass(frozen=True, slots=True)
class DnnBalance:
    """The balancing policy of one DNN, with its settings.

    Attributes:
        policy: with the settings of the configuration. A model that is fitted while training is not in it.
        shares: weights of its slots; empty where the policy takes none.
        shares_are_own: whether they are the DNN's own, not those of the run.
        fits_speeds: whether speeds are predicted by models that are fitted while training, which need to know
            how busy the hosts are.
    """

    policy: Policy
    shares: tuple[float, ...] = ()
    shares_are_own: bool = False
    fits_speeds: bool = False


def resolve_balance(settings: BalanceConfig, dnn: DnnConfig) -> DnnBalance:
    """How the steps of `dnn` are split, `settings` being those of the run."""
    from hpcbal.policies.batching import BATCHING

    policy: Any = BATCHING[dnn.balance or settings.policy]
    if policy.takes_shares:
        shares = dnn.shares or settings.shares
        return DnnBalance(replace(policy, shares=shares), shares, shares_are_own=bool(dnn.shares))
    if policy.takes_predictor:
        return DnnBalance(policy, fits_speeds=settings.predictor == "narx")
    return DnnBalance(policy)


def balances_of(config: EnsembleConfig) -> dict[str, DnnBalance]:
    """How the steps of each DNN are split, by its name."""
    return {dnn.name: resolve_balance(config.balance, dnn) for dnn in config.dnns}


def policies_where(declares: Callable[[Policy], bool]) -> tuple[str, ...]:
    """Names of the policies that declare something, in alphabetical order."""
    from hpcbal.policies.batching import BATCHING

    return tuple(sorted(name for name, policy in BATCHING.items() if declares(policy)))
