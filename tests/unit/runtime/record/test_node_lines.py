"""Each node's line names what its slots compute on; only a GPU is called one."""

from __future__ import annotations

from hpcbal.cluster.roles import RankInfo, Roles, assign_roles
from hpcbal.runtime.record.console import node_lines


def roles_of(
    *ranks_per_node: int, slots: int, seen: tuple[str, ...] = ("0", "GPU-7f3c1a22-1234-5678")
) -> Roles:
    """Roles of nodes `n1`, `n2`, ... with so many ranks each."""
    nodes = [node for node, count in enumerate(ranks_per_node) for _ in range(count)]
    infos = [
        RankInfo(rank, node, f"n{node + 1}", 100 + rank, len(seen), 0, seen)
        for rank, node in enumerate(nodes)
    ]
    return assign_roles(infos, slots, 1)


def lines_of(roles: Roles, *devices: str) -> list[str]:
    by_rank = dict(zip(roles.trainer_ranks, devices, strict=True))
    return node_lines(roles, [by_rank.get(info.rank) for info in roles.ranks])


def test_each_node_has_a_line_with_its_own_devices() -> None:
    roles = roles_of(4, 4, slots=2)
    assert lines_of(roles, "NVIDIA A100", "NVIDIA A100", "NVIDIA V100", "NVIDIA A100") == [
        "n1: 2 GPUs (NVIDIA A100), 1 preprocessor, the scheduler",
        "n1: slot 0: GPU 0, slot 1: GPU 1 (GPU-7f3c1a22...)",
        "n2: 1 GPU (NVIDIA V100), 1 GPU (NVIDIA A100), 2 preprocessors",
        "n2: slot 2: GPU 0, slot 3: GPU 1 (GPU-7f3c1a22...)",
    ]


def test_gpus_that_neither_a_mask_nor_a_driver_names_are_numbered() -> None:
    assert (
        lines_of(roles_of(4, slots=2, seen=()), "Intel Max", "Intel Max")[1]
        == "n1: slot 0: GPU 0, slot 1: GPU 1"
    )


def test_cores_and_emulated_slots_are_not_called_gpus() -> None:
    roles = roles_of(4, slots=2)
    assert lines_of(roles, "cpu, 1 thread", "cpu, 1 thread") == [
        "n1: 2 slots of CPU cores (1 thread each), 1 preprocessor, the scheduler"
    ]
    assert lines_of(roles, "emulated", "emulated") == ["n1: 2 emulated slots, 1 preprocessor, the scheduler"]
