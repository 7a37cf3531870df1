"""A process may use the cores of its affinity, as far as its control groups give it time."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.cluster.cgroup import Cores, Quota, cpu_quota, num_usable, own_control_group


def machine(tmp_path: Path, groups: str, files: dict[str, str]) -> Path:
    """A file system with the control groups of this process, and files below /sys/fs/cgroup."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),  # a container sees its own group as the root
        ("0::/job/step\n", {"job/step/cpu.max": "max 100000\n", "job/cpu.max": "400000 100000\n"}, 4.0),
        ("0::/job/step\n", {"job/step/cpu.max": "200000 100000\n", "job/cpu.max": "400000 100000\n"}, 2.0),
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, None),
        ("0::/gone\n", {}, None),
        (
            "4:memory:/a\n3:cpu,cpuacct:/docker/1\n0::/\n",
            {
                "cpu/docker/1/cpu.cfs_quota_us": "300000\n",
                "cpu/docker/1/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("", {}, None),
    ],
)
def test_the_tightest_quota_counts(
    tmp_path: Path, groups: str, files: dict[str, str], cores: float | None
) -> None:
    root = machine(tmp_path, groups, files)
    found = cpu_quota(own_control_group(root / "sys/fs/cgroup", root / "proc/self/cgroup"))
    assert (None if found is None else found.cores) == cores


def test_the_cores_of_a_node_are_counted_once_and_no_more_than_the_quotas_give() -> None:
    two, four = Cores(frozenset({0, 1})), Cores(frozenset(range(4)))
    assert num_usable([two, two, four]) == 4
    assert num_usable([Cores(four.mask, Quota("a", 1.5))] * 3) == 1
    assert num_usable([Cores(four.mask, Quota("a", 1.5)), Cores(four.mask, Quota("b", 1.5))]) == 3
    assert num_usable([Cores(four.mask, Quota("a", 1.5)), four]) == 4
    assert num_usable([Cores(four.mask, Quota("a", 0.5))]) == 1


def test_this_process_has_cores() -> None:
    assert Cores.of_this_process().mask
