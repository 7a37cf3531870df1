"""Identifiers, logs and facts of a site, as the manuals of the batch systems show them."""

from __future__ import annotations

import json

import pytest

from hpcbal.cluster.systems import SYSTEMS
from hpcbal.cluster.systems.job import SiteFacts
from hpcbal.cluster.systems.pbs import facts_of_pbsnodes
from hpcbal.cluster.systems.slurm import facts_of_sinfo


@pytest.mark.parametrize(
    ("system", "printed", "number"),
    [
        ("pbs", "12.server\n", "12.server"),
        ("pbs", "12[].pbs-server.site\n", "12[].pbs-server.site"),
        ("pbs", "welcome\n12\n", "12"),
        ("pbs", "qsub: error 12.server", ""),
        ("lsf", "Job <12> is submitted to queue <normal>.\n", "12"),
        ("lsf", "Job not submitted.", ""),
        ("flux", "ƒM7Zq9AKHno\n", "ƒM7Zq9AKHno"),
        ("flux", "fM7Zq9AKHno\n", "fM7Zq9AKHno"),
        ("flux", "flux-batch: ERROR", ""),
    ],
)
def test_the_number_in_the_answer_of_each_system(system: str, printed: str, number: str) -> None:
    assert SYSTEMS[system].number(printed) == number


@pytest.mark.parametrize(
    ("system", "array", "task", "log", "shown"),
    [
        ("slurm", "12", "12_3", "/a/hpcbal-%A_%a.log", "/a/hpcbal-12_3.log"),
        ("pbs", "12[].server", "12[3].server", "/a/hpcbal-%j.log", "/a/hpcbal-12[3].log"),
        ("lsf", "12", "12[3]", "/a/hpcbal-%J_%I.log", "/a/hpcbal-12_3.log"),
        ("flux", "f12", "f12", "/a/hpcbal-{{id}}.log", "/a/hpcbal-f12.log"),
    ],
)
def test_a_task_of_an_array_has_a_number_and_a_log(
    system: str, array: str, task: str, log: str, shown: str
) -> None:
    found = SYSTEMS[system]
    assert found.task(array, 3) == task
    assert found.log_of(log, task) == shown


def test_commands_that_cancel() -> None:
    cancelled = {name: system.cancel(["1", "2"]).words for name, system in SYSTEMS.items()}
    assert cancelled == {
        "slurm": ("scancel", "1", "2"),
        "pbs": ("qdel", "1", "2"),
        "lsf": ("bkill", "1", "2"),
        "flux": ("flux", "cancel", "1", "2"),
    }
    assert [name for name, system in SYSTEMS.items() if system.signal is None] == ["pbs", "flux"]
    assert [name for name, system in SYSTEMS.items() if system.watches] == ["pbs", "flux"]


@pytest.mark.parametrize(
    ("printed", "facts"),
    [
        ("gpu|64|gpu:a100:4(S:0-1)\ndebug*|8+|gpu:2,gpu:h100:1\n", SiteFacts("debug", 8, 3)),
        ("cpu*|48|(null)\n", SiteFacts("cpu", 48, 0)),
        ("cpu|48|(null)\n", SiteFacts()),
        ("", SiteFacts()),
    ],
)
def test_sinfo_tells_the_default_partition_and_its_nodes(printed: str, facts: SiteFacts) -> None:
    assert facts_of_sinfo(printed) == facts


def test_pbsnodes_tells_the_most_frequent_node() -> None:
    nodes = {
        name: {"resources_available": {"ncpus": cores, "ngpus": gpus}}
        for name, cores, gpus in (("login", 16, 0), ("n1", 48, 4), ("n2", 48, 4))
    }
    assert facts_of_pbsnodes(json.dumps({"nodes": nodes})) == SiteFacts("", 48, 4)
    assert facts_of_pbsnodes('{"nodes": {"n1": {}}}') == SiteFacts()
    assert facts_of_pbsnodes("pbsnodes: Server has no node list") == SiteFacts()
