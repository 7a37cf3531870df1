"""A node's GPUs and cores are divided among its trainers, and the user's own settings win."""

from __future__ import annotations

import pytest

from hpcbal.cluster.cgroup import Cores, Quota
from hpcbal.errors import ClusterError
from hpcbal.training.devices import LocalSlots, check_gpus_seen, thread_counts


def slots_of(*cores: Cores, mine: int = 0) -> LocalSlots:
    return LocalSlots(mine, cores)


NODE = Cores(frozenset(range(8)))


@pytest.mark.parametrize(
    ("num_listed", "slot", "seen", "gpu"),
    [
        (0, 3, (), None),
        (4, 3, (), 3),  # neither masks nor a driver tell them apart: the j-th
        (4, 3, ((),) * 4, 3),
        (4, 2, (("0", "1", "2", "3"),) * 4, 2),
        (1, 3, (("0",), ("1",), ("2",), ("3",)), 0),  # a launcher shows each its own
        (2, 2, (("0", "1"), ("0", "1"), ("2", "3"), ("2", "3")), 0),
        (1, 1, ((), ("GPU-b",)), 0),
    ],
)
def test_each_slot_gets_its_own_gpu(
    num_listed: int, slot: int, seen: tuple[tuple[str, ...], ...], gpu: int | None
) -> None:
    assert LocalSlots(slot, (NODE,) * 4, seen=seen).gpu("PyTorch", num_listed) == gpu


@pytest.mark.parametrize(
    ("num_listed", "seen"), [(4, ()), (1, (("0",),) * 5), (4, (("0", "1", "2", "3"),) * 5)]
)
def test_two_slots_on_one_gpu_are_refused(num_listed: int, seen: tuple[tuple[str, ...], ...]) -> None:
    slots = LocalSlots(4, (NODE,) * 5, seen=seen, host="n7")
    with pytest.raises(
        ClusterError, match=rf"^n7: slots . and . .*set slots\.per_node to at most {num_listed}"
    ):
        slots.gpu("PyTorch", num_listed)


def test_slots_that_share_gpus_take_them_in_turn() -> None:
    seen = (("GPU-a", "GPU-b"),) * 4
    found = [LocalSlots(slot, (NODE,) * 4, seen=seen, slots_per_gpu=2).gpu("PyTorch", 2) for slot in range(4)]
    assert found == [0, 1, 0, 1]
    unnamed = [LocalSlots(slot, (NODE,) * 4, slots_per_gpu=2).gpu("PyTorch", 2) for slot in range(4)]
    assert unnamed == found


def test_a_library_that_lists_fewer_gpus_than_the_masks_is_named() -> None:
    slots = LocalSlots(1, (NODE,) * 2, seen=(("0", "1"),) * 2)
    with pytest.raises(
        ClusterError, match=r"use GPU 1 of those that it sees \(0, 1\), but PyTorch lists only 1"
    ):
        slots.gpu("PyTorch", 1)


def test_cores_are_divided_among_those_that_share_them() -> None:
    assert slots_of(*[NODE] * 4).threads() == 2
    assert slots_of(*[NODE] * 3).threads() == 2
    assert slots_of(*[Cores(frozenset({0}))] * 4).threads() == 1


def test_cores_that_a_launcher_has_bound_are_not_divided_again() -> None:
    assert slots_of(Cores(frozenset({0, 1})), Cores(frozenset({2, 3}))).threads() == 2


def test_a_quota_is_divided_among_the_slots_of_its_control_group() -> None:
    quota = Quota("1:7", 4.0)
    assert slots_of(Cores(NODE.mask, quota)).threads() == 4
    assert slots_of(*[Cores(NODE.mask, quota)] * 2).threads() == 2
    assert (
        slots_of(Cores(frozenset({0, 1, 2}), quota), Cores(frozenset({3}), Quota("1:8", 1.0))).threads() == 3
    )
    assert slots_of(Cores(NODE.mask, Quota("1:7", 0.5))).threads() == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (2, 2)),
        ({"OMP_NUM_THREADS": "5"}, (5, 5)),
        ({"OMP_NUM_THREADS": "5,2"}, (5, 5)),
        ({"OMP_NUM_THREADS": "5", "TF_NUM_INTRAOP_THREADS": "3"}, (3, 5)),
        ({"TF_NUM_INTEROP_THREADS": "7", "OMP_NUM_THREADS": "many"}, (2, 7)),
        ({"OMP_NUM_THREADS": "0"}, (2, 2)),
    ],
)
def test_the_users_thread_counts_win(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert thread_counts(environment, share=2) == expected


@pytest.mark.parametrize(("device", "granted"), [("cpu", "SLURM_JOB_GPUS=0"), ("auto", None), ("cpu", None)])
def test_cores_are_used_where_no_gpu_was_given_or_the_file_says_so(device: str, granted: str | None) -> None:
    check_gpus_seen("TensorFlow", device, granted, built_with_gpus=False)


@pytest.mark.parametrize(
    ("device", "granted", "built_with_gpus", "expected"),
    [
        ("auto", "SLURM_JOB_GPUS=0,1", False, r"given GPUs \(SLURM_JOB_GPUS=0,1\).*HPCBAL_DEVICE=gpu"),
        ("auto", "CUDA_VISIBLE_DEVICES=0", True, "'nvidia-smi'"),
        ("gpu", None, True, "slots.device is gpu, but TensorFlow sees none"),
    ],
)
def test_gpus_that_tensorflow_does_not_see_are_an_error_with_a_remedy(
    device: str, granted: str | None, built_with_gpus: bool, expected: str
) -> None:
    with pytest.raises(ClusterError, match=expected) as raised:
        check_gpus_seen("TensorFlow", device, granted, built_with_gpus=built_with_gpus)
    assert "set slots.device to cpu" in str(raised.value)
    assert raised.value.exit_code == 2
