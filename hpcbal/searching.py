"""Propose the values of the next DNN of a search, from what the DNNs before it have reached.

A proposal is a function of the search, its seed, the number of the DNN and these results alone: each
proposal makes a new sampler and tells it all results. So no sampler has to be saved, and a run that is
resumed, or repeated with the same results, proposes the same.

Source: [TPE]; `optuna.samplers.TPESampler` through `ask`, with its default settings. DNNs that still train
count as poor (`constant_liar`), so that DNNs that are proposed together differ.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcbal.config.schema.prune import Distribution, OpenSearchConfig, rounded_as_drawn
from hpcbal.errors import InputError


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a DNN of a search so far.

    Attributes:
        drawn: its values, by key; of a choice the index.
        state: `over`; `early` if it was stopped early, or is paused; `training`; `failed`.
        curve: what is compared after each epoch: the monitored metric, or how the DNN changes the loss of
            a committee; NaN where it is not known.
    """

    drawn: Mapping[str, float | int]
    state: Literal["over", "early", "training", "failed"]
    curve: Sequence[float] = ()


def propose(
    open_search: OpenSearchConfig, results: Sequence[Result], seed: int, *, more_is_better: bool
) -> dict[str, float | int]:
    """Return the values of the next DNN, by key; of a choice the index.

    Args:
        open_search: the search.
        results: of its DNNs so far, in their order.
        seed: the run's seed; that of the search takes precedence.
        more_is_better: whether larger values of the curves are better.

    Raises:
        InputError: if optuna is not installed, or refuses the search or its results.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            f"search.sampler: tpe needs optuna ({error}); pip install 'hpcbal[search]', or take sampler: "
            "random"
        ) from error
    search = open_search.search
    own = seed if search.seed is None else search.seed
    numbers = random.Random(f"{own}/{open_search.name}/tpe/{len(results)}")
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=1, constant_liar=True, seed=numbers.randrange(2**32)
        )
        study = optuna.create_study(sampler=sampler, direction="maximize" if more_is_better else "minimize")
        space = {key: _distribution(optuna, own) for key, own in search.space.items()}
        trials = [_trial(optuna, space, each, more_is_better) for each in results]
        study.add_trials([trial for trial in trials if trial is not None])
        found: dict[str, float | int] = study.ask(fixed_distributions=space).params
    except Exception as error:  # of optuna, which documents none: the run goes on without the search
        raise InputError(
            f"sweep {open_search.name}: optuna proposes nothing ({type(error).__name__}: {error}); try "
            "another version of optuna, or take sampler: random"
        ) from error
    finally:
        optuna.logging.set_verbosity(before)
    return {key: rounded_as_drawn(search.space[key], value) for key, value in found.items()}


def _distribution(optuna: Any, own: Distribution) -> Any:
    of = optuna.distributions
    if own.choice is not None:
        return of.CategoricalDistribution(range(len(own.choice)))
    if own.integers is not None:
        return of.IntDistribution(*own.integers)
    if own.log_uniform is not None:
        return of.FloatDistribution(*own.log_uniform, log=True)
    assert own.uniform is not None
    return of.FloatDistribution(*own.uniform)


def _trial(optuna: Any, space: Mapping[str, Any], result: Result, more_is_better: bool) -> Any:
    """The result as optuna has it; None if it is outside of the space, which has changed since.

    A DNN that was stopped early counts by its best value up to its last epoch, after all that trained longer.
    """
    state, drawn = optuna.trial.TrialState, dict(result.drawn)
    known = drawn.keys() == space.keys()
    if not known or not all(own._contains(own.to_internal_repr(drawn[key])) for key, own in space.items()):
        return None
    best = max if more_is_better else min
    finite = [value for value in result.curve if math.isfinite(value)]
    given: dict[str, Any] = {"state": state.RUNNING}
    if result.state == "failed" or (result.state != "training" and not finite):
        given = {"state": state.FAIL}
    elif result.state == "over":
        given = {"state": state.COMPLETE, "value": best(finite)}
    elif result.state == "early":
        given = {"state": state.PRUNED, "intermediate_values": {len(result.curve): best(finite)}}
    return optuna.trial.create_trial(params=drawn, distributions=dict(space), **given)
