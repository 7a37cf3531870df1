"""How a DNN's steps are shared out: its own keys, or else the run's; and what policies declare."""

from __future__ import annotations

from typing import get_args

import pytest

from hpcbal.config import DnnConfig
from hpcbal.config.balance import policies_where, resolve_balance
from hpcbal.config.schema.dnn import BalanceName
from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.policies.batching import BATCHING
from hpcbal.policies.batching.even import Fixed
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, Memoryless


def dnn(**keys: object) -> DnnConfig:
    return DnnConfig.model_validate(
        {
            "name": "a",
            "model": "m:f",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "batch_size": 10,
            "stop": {"max_epochs": 1},
            **keys,
        }
    )


def test_the_schema_names_every_policy() -> None:
    assert set(get_args(BalanceName)) == set(BATCHING)


@pytest.mark.parametrize(
    ("of_the_run", "own", "expected"),
    [("even", None, "even"), ("even", "fitted", "fitted"), ("lb-bsp-gpu", "even", "even")],
)
def test_a_dnn_may_have_a_policy_of_its_own(of_the_run: str, own: str | None, expected: str) -> None:
    settings = BalanceConfig.model_validate({"policy": of_the_run})
    assert resolve_balance(settings, dnn(balance=own)).policy == BATCHING[expected]


def test_weights_of_a_dnn_come_before_those_of_the_run() -> None:
    settings = BalanceConfig.model_validate({"policy": "fixed", "shares": [2, 1]})
    run, own = resolve_balance(settings, dnn()), resolve_balance(settings, dnn(shares=[1, 4]))
    assert (run.policy, run.shares_are_own) == (Fixed((2.0, 1.0)), False)
    assert (own.policy, own.shares, own.shares_are_own) == (Fixed((1.0, 4.0)), (1.0, 4.0), True)


def test_weights_and_predictors_are_only_of_policies_that_take_them() -> None:
    settings = BalanceConfig.model_validate({"policy": "fitted", "shares": [2, 1], "predictor": "narx"})
    balance = resolve_balance(settings, dnn())
    assert (balance.shares, balance.fits_speeds) == ((), False)


@pytest.mark.parametrize(("predictor", "fits"), [("memoryless", False), ("narx", True)])
def test_only_narx_is_fitted(predictor: str, fits: bool) -> None:
    settings = BalanceConfig.model_validate({"policy": "lb-bsp-cpu", "predictor": predictor})
    balance = resolve_balance(settings, dnn())
    assert (balance.policy, balance.fits_speeds) == (LbBspCpu(Memoryless()), fits)


def test_policies_are_found_by_what_they_declare() -> None:
    assert policies_where(lambda policy: not policy.decides) == ("even", "fixed")
    assert policies_where(lambda policy: policy.splits_evenly) == ("even",)


def test_the_default_policy_takes_no_weights_so_that_checks_need_not_load_it() -> None:
    from hpcbal.config.checks.sections import DEFAULT_POLICY
    from hpcbal.policies.batching import BATCHING

    assert not BATCHING[DEFAULT_POLICY].takes_shares
