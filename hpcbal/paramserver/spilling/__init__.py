"""Data blocks on node-local disk, read ahead of their turn ([PS] Sec. 4.3.3)."""

from hpcbal.paramserver.spilling.disk import LocalDisk, SpillError
from hpcbal.paramserver.spilling.planning import MachineSpill
from hpcbal.paramserver.spilling.stored_block import StoredBlock, Window

__all__ = ["LocalDisk", "MachineSpill", "SpillError", "StoredBlock", "Window"]
