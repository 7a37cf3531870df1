"""The accelerators that a process may use, by masks of NVIDIA, AMD and Intel, and which slot takes which.

A mask (`CUDA_VISIBLE_DEVICES` and the like) is only read: its entries are what the libraries number from 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal import env
from hpcbal.errors import ClusterError

NVIDIA, AMD, INTEL = "NVIDIA", "AMD", "Intel"

# A batch system that does not know the vendor (Slurm's generic plugin) sets all of them, equally.
_MASKS: Mapping[str, tuple[str, ...]] = {
    NVIDIA: ("CUDA_VISIBLE_DEVICES",),
    AMD: ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),  # HIP numbers what ROCR leaves
    INTEL: ("ZE_AFFINITY_MASK",),
}
MASKS = tuple(name for names in _MASKS.values() for name in names)
"""All variables that show a process some of the devices."""

# LSF and jsrun set CUDA_VISIBLE_DEVICES only.
_GRANTED = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", *MASKS)
_NO_DEVICE = ("", "-1", "NoDevFiles")  # the last one is from Slurm, for jobs without GPUs
_MIG, _RENDER = "MIG-", "renderD"  # as the kernel calls the files of devices


@dataclass(frozen=True, slots=True)
class Installed:
    """The devices of this machine that the driver shows and this process may open.

    Attributes:
        ids: by vendor, the id of each device, in the order in which masks number them; no entry if the vendor
            has no driver here. Intel's driver is not asked, because it also drives the graphics of laptops.
    """

    ids: Mapping[str, tuple[str, ...]]

    @classmethod
    def on_this_machine(
        cls, root: Path = Path("/"), may_open: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK)
    ) -> Installed:
        """Ask the drivers of NVIDIA and AMD, by their files.

        Args:
            root: of the file system.
            may_open: whether this process may open a device; a batch system may forbid it by control groups.
        """
        found = {NVIDIA: _nvidia(root, may_open), AMD: _amd(root, may_open)}
        return cls({vendor: ids for vendor, ids in found.items() if ids is not None})


def _nvidia(root: Path, may_open: Callable[[Path], bool]) -> tuple[str, ...] | None:
    """UUIDs in the order of PCI bus ids; a driver that has not started a device yet shows no UUID of it."""
    folder = root / "proc/driver/nvidia/gpus"
    if not folder.is_dir():
        return None
    ids = []
    for device in sorted(folder.iterdir(), key=lambda path: path.name):
        text = _text_of(device / "information")
        uuid, minor = (
            re.search(r"GPU UUID:\s*(GPU-[0-9a-f-]+)\s", text),
            re.search(r"Device Minor:\s*(\d+)", text),
        )
        node = root / f"dev/nvidia{minor[1]}" if minor is not None else None
        if node is None or not node.exists() or may_open(node):
            ids.append(device.name if uuid is None else uuid[1])
    return tuple(ids)


def _amd(root: Path, may_open: Callable[[Path], bool]) -> tuple[str, ...] | None:
    """UUIDs in the order of the driver's nodes; those without computing units are processors."""
    folder = root / "sys/class/kfd/kfd/topology/nodes"
    if not folder.is_dir():
        return None
    ids = []
    for device in sorted(folder.iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1):
        facts = dict(re.findall(r"^(\w+) (\d+)$", _text_of(device / "properties"), flags=re.MULTILINE))
        if not int(facts.get("simd_count", "0")):
            continue
        name = f"{_RENDER}{facts.get('drm_render_minor', '')}"
        node = root / "dev/dri" / name
        if not node.exists() or may_open(node):
            unique = int(facts.get("unique_id", "0"))
            ids.append(f"GPU-{unique:016x}" if unique else name)
    return tuple(ids)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def visible_devices(environ: Mapping[str, str], installed: Installed) -> tuple[str, ...]:
    """Return the devices that this process sees, in the order in which libraries number them from 0.

    A device has the id of the driver where that is known, otherwise that of the mask, so that two processes
    of one machine call the same device the same. CUDA shows only the first MIG device of a mask.

    Args:
        environ: of this process.
        installed: the devices of this machine.
    """
    present = [vendor for vendor in _MASKS if installed.ids.get(vendor)]
    masked = [vendor for vendor, names in _MASKS.items() if any(name in environ for name in names)]
    vendor = next(iter([*present, *masked]), None)
    if vendor is None:
        return ()
    # Without the driver's own numbering an index of a mask says nothing about the driver's list.
    is_numbered = vendor != NVIDIA or environ.get("CUDA_DEVICE_ORDER", env.DRIVERS_ORDER) == env.DRIVERS_ORDER
    known = installed.ids.get(vendor, ())
    if not is_numbered:
        known = tuple(str(index) for index in range(len(known)))
    seen: tuple[str, ...] | None = known or None
    for mask in _masks_of(vendor, environ):
        found: list[str] = []
        for entry in entries(mask):
            device = _named(entry, seen)
            if device is None:
                break
            found.append(device)
        seen = tuple(found)
    seen = seen or ()
    return seen[:1] if seen and seen[0].startswith(_MIG) else seen


def _masks_of(vendor: str, environ: Mapping[str, str]) -> list[str]:
    """The masks that the libraries of a vendor read, in the order in which they apply.

    Where HIP has no mask of its own, it reads CUDA's. One that equals that of ROCR is a batch system's, which
    sets all of them.
    """
    names = _MASKS[vendor]
    masks = [environ[name] for name in names if name in environ]
    (cudas,) = _MASKS[NVIDIA]
    if vendor == AMD and names[-1] not in environ and cudas in environ and environ[cudas] not in masks:
        masks.append(environ[cudas])
    return masks


def _named(entry: str, among: tuple[str, ...] | None) -> str | None:
    """The id of the device that an entry of a mask means: an index, a UUID, or the beginning of one.

    Returns: None if there is no such device; libraries ignore the rest of the mask, too.
    """
    if among is None:
        return entry
    if entry.isascii() and entry.isdigit() and len(entry) < 10:
        return among[int(entry)] if int(entry) < len(among) else None
    if not entry.startswith(("GPU-", _MIG)):
        return None
    fits = [device for device in among if entry.startswith("GPU-") and device.startswith(entry)]
    if len(fits) == 1:
        return fits[0]
    is_none = entry.startswith("GPU-") and all(device.startswith("GPU-") for device in among)
    return None if is_none else entry


def entries(mask: str) -> tuple[str, ...]:
    """Return the entries of a mask; the first one that is no device ends it."""
    found = []
    for part in mask.split(","):
        if part.strip() in _NO_DEVICE:
            break
        found.append(part.strip())
    return tuple(found)


def visible_gpus(device: str = "auto") -> tuple[str, ...]:
    """Return the ids of the GPUs that this process may use, as `visible_devices` does.

    Args:
        device: `slots.device`; there are none if it is `cpu`.
    """
    return () if device == "cpu" else visible_devices(os.environ, Installed.on_this_machine())


def granted_gpus(environ: Mapping[str, str]) -> str | None:
    """The variable by which the batch system or the user gave GPUs, such as `SLURM_JOB_GPUS=0,1`.

    Returns: None if no variable names a GPU.
    """
    for variable in _GRANTED:
        value = environ.get(variable, "")
        if entries(value) and not (variable == "SLURM_GPUS_ON_NODE" and value == "0"):
            return f"{variable}={value}"
    return None


def devices_of_slots(
    visible: Sequence[Sequence[str]], host: str, slots_per_device: int = 1
) -> tuple[int, ...]:
    """Give each slot of a node a device of its own, or a share of one.

    If all slots see the same devices, slot j gets the j-th; if a launcher shows each slot its own, it gets
    that one. Where they see some in common, slots move on to others if that gives each one its own. If slots
    share devices, no device gets its second slot before each has its first.

    Args:
        visible: the devices that each slot sees, at least one each, from `visible_devices`.
        host: name of the node, for the message.
        slots_per_device: slots that may use the same device, >= 1.

    Returns: for each slot an index into what it sees.

    Raises:
        ClusterError: if more slots would use one device. A tile of a card that another slot sees as a whole
            is the same device.
    """
    everything = {device for seen in visible for device in seen}
    cards = [[_card_in(everything, device) for device in seen] for seen in visible]
    owner: dict[tuple[int, str], int] = {}  # by share of a device

    def take(slot: int, num_shares: int, refused: set[tuple[int, str]]) -> bool:
        shares = [(share, device) for share in range(num_shares) for device in cards[slot]]
        for each in shares:
            if each not in owner:
                owner[each] = slot
                return True
        for each in shares:
            if each not in refused:
                refused.add(each)
                if take(owner[each], num_shares, refused):
                    owner[each] = slot
                    return True
        return False

    waiting = list(range(len(visible)))
    for num_shares in range(1, slots_per_device + 1):
        waiting = [slot for slot in waiting if not take(slot, num_shares, set())]
    if waiting:
        slot = waiting[0]
        others = [owner[share, cards[slot][0]] for share in range(slots_per_device)]
        count = len({device for seen in cards for device in seen})
        raise ClusterError(
            f"{host}: slots {', '.join(map(str, others))} and {slot} would use the same device "
            f"({visible[slot][0]}), because the {len(visible)} slots of this node see {count} together; "
            f"set slots.per_node to at most {count * slots_per_device}, or slots.per_gpu above "
            f"{slots_per_device} if networks are small, or give each rank a device of its own "
            f"({', '.join(MASKS[:2])} or {MASKS[-1]})"
        )
    device_of = {slot: device for (_, device), slot in owner.items()}
    return tuple(cards[slot].index(device_of[slot]) for slot in range(len(visible)))


def _card_in(devices: set[str], device: str) -> str:
    """The card of a tile such as `0.1`, if a slot sees the whole card; otherwise the device itself."""
    card = device.partition(".")[0]
    return card if card in devices else device


def device_of(
    visible: Sequence[Sequence[str]], slot: int, host: str, slots_per_device: int = 1
) -> int | None:
    """Return what `devices_of_slots` gives a slot; None if this slot sees no device.

    Args, Raises: as for `devices_of_slots`; slots that see no device do not count.
    """
    seeing = [index for index, seen in enumerate(visible) if seen]
    if slot not in seeing:
        return None
    indices = devices_of_slots([visible[index] for index in seeing], host, slots_per_device)
    return indices[seeing.index(slot)]
