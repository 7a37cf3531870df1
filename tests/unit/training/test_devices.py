"""A node's GPUs and cores are divided among its trainers, and the user's own settings win."""

from __future__ import annotations

import pytest

from hpcbal.errors import ClusterError
from hpcbal.training.devices import check_gpus_seen, gpu_of_slot, thread_counts, threads_of_slot


@pytest.mark.parametrize(
    ("num_visible", "slot", "gpu"), [(0, 3, None), (4, 0, 0), (4, 3, 3), (1, 0, 0), (1, 3, 0)]
)
def test_each_slot_gets_its_own_gpu(num_visible: int, slot: int, gpu: int | None) -> None:
    assert gpu_of_slot(num_visible, slot) == gpu


def test_the_error_for_more_slots_than_gpus_gives_the_number_of_gpus() -> None:
    with pytest.raises(ClusterError, match=r"set slots\.per_node to at most 4"):
        gpu_of_slot(4, 4)


def test_cores_are_divided_among_those_that_share_them() -> None:
    node = frozenset(range(8))
    assert threads_of_slot(node, 4) == 2
    assert threads_of_slot(node, 3) == 2
    assert threads_of_slot(node, 4, [node] * 4) == 2
    assert threads_of_slot(frozenset({0}), 4) == 1


def test_cores_that_a_launcher_has_bound_are_not_divided_again() -> None:
    masks = [frozenset({0, 1}), frozenset({2, 3})]
    assert threads_of_slot(masks[0], 2, masks) == 2


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
