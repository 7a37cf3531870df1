"""Devices are what masks and drivers show; each slot gets its own. All are made up: no GPU was at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.cluster.devices import (
    MASKS,
    Installed,
    devices_of_slots,
    entries,
    granted_gpus,
    visible_devices,
    visible_gpus,
)
from hpcbal.errors import ClusterError

NOTHING = Installed({})
FOUR = Installed({"NVIDIA": ("GPU-a0", "GPU-b1", "GPU-c2", "GPU-d3")})
TWO_AMD = Installed({"AMD": ("GPU-11", "GPU-22", "GPU-33")})


@pytest.mark.parametrize(
    ("environ", "installed", "seen"),
    [
        ({}, NOTHING, ()),
        ({}, FOUR, ("GPU-a0", "GPU-b1", "GPU-c2", "GPU-d3")),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, FOUR, ("GPU-c2", "GPU-a0")),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, NOTHING, ("2", "0")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-c2,GPU-a"}, FOUR, ("GPU-c2", "GPU-a0")),  # a UUID may be cut short
        ({"CUDA_VISIBLE_DEVICES": ""}, FOUR, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, FOUR, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, FOUR, ("GPU-b1",)),  # CUDA stops there
        ({"CUDA_VISIBLE_DEVICES": "0,5,1"}, FOUR, ("GPU-a0",)),
        ({"CUDA_VISIBLE_DEVICES": "4"}, FOUR, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,all,0"}, FOUR, ("GPU-b1",)),
        ({"CUDA_VISIBLE_DEVICES": "0;1"}, FOUR, ()),
        ({"CUDA_VISIBLE_DEVICES": "²"}, FOUR, ()),
        ({"CUDA_VISIBLE_DEVICES": "0," + 5000 * "1"}, FOUR, ("GPU-a0",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-e4,0"}, FOUR, ("GPU-b1",)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, FOUR, ()),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, FOUR, ("MIG-1",)),  # a process has one at most
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, FOUR, ("1",)),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, FOUR, ("0", "1", "2", "3")),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, TWO_AMD, ("GPU-22", "GPU-33")),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, TWO_AMD, ("GPU-33",)),
        ({"HIP_VISIBLE_DEVICES": "0"}, TWO_AMD, ("GPU-11",)),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, TWO_AMD, ("GPU-11",)),
        ({"CUDA_VISIBLE_DEVICES": "2"}, TWO_AMD, ("GPU-33",)),
        ({"CUDA_VISIBLE_DEVICES": "2,3,0"}, TWO_AMD, ("GPU-33",)),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "1"}, TWO_AMD, ("GPU-33",)),
        ({"ROCR_VISIBLE_DEVICES": "2,5,0"}, TWO_AMD, ("GPU-33",)),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, NOTHING, ("5",)),
        ({"ZE_AFFINITY_MASK": "0.1,1"}, NOTHING, ("0.1", "1")),
        (dict.fromkeys(MASKS[:2], "1") | {"ZE_AFFINITY_MASK": "1"}, TWO_AMD, ("GPU-22",)),  # Slurm sets all
        (dict.fromkeys(MASKS[:2], "1") | {"ZE_AFFINITY_MASK": "1"}, NOTHING, ("1",)),
    ],
)
def test_masks_are_numbered_as_libraries_number_them(
    environ: dict[str, str], installed: Installed, seen: tuple[str, ...]
) -> None:
    assert visible_devices(environ, installed) == seen


def driver_of_nvidia(root: Path, *uuids: str) -> None:
    for minor, uuid in enumerate(uuids):
        folder = root / f"proc/driver/nvidia/gpus/0000:{minor + 7:02x}:00.0"
        folder.mkdir(parents=True)
        facts = f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(facts)
        (root / "dev").mkdir(exist_ok=True)
        (root / f"dev/nvidia{minor}").touch()


def test_the_driver_of_nvidia_names_those_that_the_job_may_open(tmp_path: Path) -> None:
    driver_of_nvidia(tmp_path, "GPU-1a2b-0", "GPU-1a2b-1", "GPU-????????-????")
    allowed = Installed.on_this_machine(tmp_path, lambda path: path.name != "nvidia0")
    assert allowed.ids == {"NVIDIA": ("GPU-1a2b-1", "0000:09:00.0")}
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "0"}, allowed) == ("GPU-1a2b-1",)


def test_the_driver_of_amd_names_those_with_computing_units(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, facts in enumerate(
        ("simd_count 0", "simd_count 440\nunique_id 255", "simd_count 440\nunique_id 0")
    ):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(f"{facts}\ndrm_render_minor {128 + number}\n")
    assert Installed.on_this_machine(tmp_path).ids == {"AMD": ("GPU-00000000000000ff", "renderD130")}


def test_without_a_driver_nothing_is_installed(tmp_path: Path) -> None:
    assert Installed.on_this_machine(tmp_path) == NOTHING


def test_slots_on_cores_see_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MASKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert len(visible_gpus()) == 2
    assert visible_gpus("cpu") == ()


def test_an_entry_that_is_no_device_ends_a_mask() -> None:
    assert entries(" 0, 1 ,-1,2") == ("0", "1")


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        ([("0", "1", "2", "3")] * 4, (0, 1, 2, 3)),
        ([("0", "1", "2", "3")] * 2, (0, 1)),
        ([("3",), ("1",)], (0, 0)),
        ([("0", "1"), ("0", "1"), ("2", "3"), ("2", "3")], (0, 1, 0, 1)),
        ([("0", "1"), ("0",)], (1, 0)),  # the first moves on
        ([("0", "1"), ("0", "2"), ("0",)], (1, 1, 0)),
        ([("0.0", "0.1"), ("0.0", "0.1")], (0, 1)),
        ([("0.0",), ("1",)], (0, 0)),
    ],
)
def test_each_slot_gets_a_device_of_its_own(visible: list[tuple[str, ...]], chosen: tuple[int, ...]) -> None:
    assert devices_of_slots(visible, "n1") == chosen


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        ([("0", "1")] * 4, (0, 1, 0, 1)),
        ([("0", "1", "2", "3")] * 5, (0, 1, 2, 3, 0)),  # no device is idle while another is shared
        ([("0",), ("0",), ("1",), ("1",)], (0, 0, 0, 0)),  # a launcher shows each its own
        ([("0", "1"), ("0", "1"), ("0",), ("0",)], (1, 1, 0, 0)),
        ([("0", "1"), ("0",)], (1, 0)),  # the first moves on before any is shared
    ],
)
def test_slots_share_devices_evenly_where_they_may(
    visible: list[tuple[str, ...]], chosen: tuple[int, ...]
) -> None:
    assert devices_of_slots(visible, "n1", 2) == chosen
    with pytest.raises(ClusterError, match=r"^n1: slots \d+, \d+ and \d+ .*slots.per_gpu above 2"):
        devices_of_slots(visible * 5, "n1", 2)


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ([("0",), ("0",)], r"slots 0 and 1 .* device \(0\).* at most 1"),
        ([("0", "1")] * 3, r"slots . and 2 .* at most 2"),
        ([("0", "0")] * 2, r"slots 0 and 1 .* at most 1"),  # a mask that names one twice
        ([("MIG-1",)] * 2, r"slots 0 and 1 .* device \(MIG-1\)"),
        ([("0",), ("0.1",)], r"slots 0 and 1 .* device \(0.1\)"),  # a card, and a tile of it
    ],
)
def test_two_slots_on_one_device_are_refused(visible: list[tuple[str, ...]], words: str) -> None:
    with pytest.raises(ClusterError, match=f"^n1: {words}"):
        devices_of_slots(visible, "n1")


@pytest.mark.parametrize(
    ("environ", "granted"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({"SLURM_GPUS_ON_NODE": "4"}, "SLURM_GPUS_ON_NODE=4"),
        ({"SLURM_JOB_GPUS": "0"}, "SLURM_JOB_GPUS=0"),
        ({"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": ""}, "SLURM_STEP_GPUS=2,3"),
        ({"LSB_JOBID": "7", "CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES=1"),
        ({"ZE_AFFINITY_MASK": "0.1"}, "ZE_AFFINITY_MASK=0.1"),
    ],
)
def test_the_batch_system_names_the_gpus_that_it_gave(environ: dict[str, str], granted: str | None) -> None:
    assert granted_gpus(environ) == granted
