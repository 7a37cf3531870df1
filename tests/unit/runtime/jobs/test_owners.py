"""Who owns what when a job goes on."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.config import ParamServerConfig
from hpcbal.runtime.jobs.checkpoint import DATA, PARAMETERS, SavedJob
from hpcbal.runtime.jobs.executors import first_owners, without_blocks
from hpcbal.runtime.jobs.loading import Cut

UNEVEN = SavedJob(
    3, "f", {DATA: (6,), PARAMETERS: (4,)}, (), {DATA: (1, 1, 1, 1, 1, 4), PARAMETERS: (2, 5, 5, 5)}
)


def owners(in_use: list[int], **changes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    config = ParamServerConfig.model_validate(
        {"app": "a:B", "data": {"dataset": "a:c"}, "mini_batch": 5, "stop": {"max_epochs": 2}, **changes}
    )
    return first_owners(config, Cut(6, (4,)), in_use, UNEVEN)


def test_a_job_that_configures_itself_keeps_what_it_has_chosen() -> None:
    assert owners([1, 2, 3, 4, 5]) == (UNEVEN.holder[DATA], UNEVEN.holder[PARAMETERS])


def test_without_tuning_shares_are_even_also_after_a_stop_amid_a_change() -> None:
    """Executor 3 stands by, as before the stop."""
    assert owners([1, 2, 3, 4, 5], tune={"enabled": False}) == ((1, 1, 1, 4, 4, 4), (2, 2, 5, 5))


@pytest.mark.parametrize(
    ("in_use", "changes"),
    [([1, 2, 3], {}), ([1, 2, 3, 4, 5], {"workers": 2, "servers": 1})],
    ids=["gone", "told"],
)
def test_roles_are_dealt_anew_if_executors_are_gone_or_the_file_says_so(
    in_use: list[int], changes: dict[str, Any]
) -> None:
    data, parameters = owners(in_use, **changes)
    assert {*data, *parameters} <= {*in_use}
    assert not {*data} & {*parameters}
    assert len({*data}) == 2
    assert len({*parameters}) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, []),
        ({"workers": 6, "servers": 4}, []),
        (
            {"workers": 8, "servers": 4},
            ["warning: workers: got 8, but there are 6 blocks, so 2 of them"],
        ),
        (
            {"servers": 5},
            ["warning: servers: got 5, but there are 4 blocks, so 1 of them"],
        ),
    ],
)
def test_executors_without_blocks_are_named(changes: dict[str, int], says: list[str]) -> None:
    config = ParamServerConfig.model_validate(
        {"app": "a:B", "data": {"dataset": "a:c"}, "mini_batch": 5, "stop": {"max_epochs": 2}, **changes}
    )
    found = without_blocks(config, (1,) * 6, (2,) * 4)
    assert len(found) == len(says)
    assert all(text.startswith(start) for text, start in zip(found, says, strict=True))
