"""Check that two blocks of samples fit into the ring, as far as the file shows how large a sample is."""

from __future__ import annotations

from hpcbal.config.checks.custom_operations import is_own
from hpcbal.config.schema.ensemble import MOST_BLOCK_SAMPLES, DataplaneConfig
from hpcbal.config.schema.operations import MOST_PIXELS
from hpcbal.config.schema.run import MOST_BYTES
from hpcbal.config.schema.values import parse_bytes
from hpcbal.config.source.nodes import YamlNode

_SIZED = ("resize", "random_crop", "center_crop")
_ELEMENTWISE = "normalize"
_FLOAT_BYTES = 4


def ring_problems(root: YamlNode) -> list[str]:
    """Problems with `dataplane.ring_bytes`, in a written-out configuration that may have others, too.

    A sample has at least one byte, or those of one channel after the last operation that fixes its size and
    runs before samples travel, if no operation of the user comes after it. Only the run knows the rest.
    """
    defaults = DataplaneConfig()
    dataplane = root.get("dataplane")
    ring_bytes = _number(dataplane, "ring_bytes", defaults.ring_bytes, MOST_BYTES)
    block_samples = _number(dataplane, "block_samples", defaults.block_samples, MOST_BLOCK_SAMPLES)
    on_device = None if dataplane is None else dataplane.get("on_device")
    leaves = defaults.on_device if on_device is None else on_device.value is not False
    sample_bytes, cause = _least_sample(root.get("preprocessing"), leaves_last=leaves)
    if ring_bytes is None or block_samples is None or 2 * block_samples * sample_bytes <= ring_bytes:
        return []
    needed = 2 * block_samples * sample_bytes
    blocks = f"two blocks of {block_samples} samples of at least {sample_bytes} bytes"
    advice = "raise it, or lower dataplane.block_samples"
    own = None if dataplane is None else dataplane.get("ring_bytes") or dataplane.get("block_samples")
    if own is not None and own.key.endswith("ring_bytes"):
        return [own.problem(f"got {ring_bytes}, allowed: at least {needed}, {blocks}; {advice}")]
    node = cause or own or root
    return [node.problem(f"{blocks} do not fit into dataplane.ring_bytes ({ring_bytes}); {advice}")]


def _number(section: YamlNode | None, name: str, default: int, most: int) -> int | None:
    """The size or count of that name; None if it is wrong, which another check reports."""
    node = None if section is None else section.get(name)
    if node is None:
        return default
    try:
        value = parse_bytes(node.value)
    except ValueError:
        return None
    return value if type(value) is int and 0 < value <= most else None


def _least_sample(operations: YamlNode | None, *, leaves_last: bool) -> tuple[int, YamlNode | None]:
    """(fewest bytes of a sample that travels, the operation that fixes them).

    Args:
        leaves_last: whether elementwise operations at the end run on the device.
    """
    num_pixels, pixel_bytes, cause = 1, 1, None
    items = list(operations.value) if operations is not None and operations.is_list else []
    while leaves_last and items and items[-1].get(_ELEMENTWISE) is not None:
        items.pop()
    for item in items:
        if is_own(item):  # it may change size and type
            num_pixels, pixel_bytes, cause = 1, 1, None
        for name in _SIZED:
            size = item.get(name)
            sides = [_number(size, side, 0, MOST_PIXELS) for side in ("height", "width")]
            if size is not None and sides[0] and sides[1]:
                num_pixels, cause = sides[0] * sides[1], size
        if item.get(_ELEMENTWISE) is not None:
            pixel_bytes = _FLOAT_BYTES
    return num_pixels * pixel_bytes, cause
