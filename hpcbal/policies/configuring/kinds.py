"""Group machines that no cost can distinguish."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.policies.configuring.cost_model import Machine, Problem

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """Machines in groups of equals; arrays have one entry per kind.

    Attributes:
        members: machines of each kind, ascending.
        size: number of members.
        block_s: compute time of a data block.
        link_s: seconds per byte of the link.
        serve_s: seconds per byte as a server.
        most_data, most_parameters: most blocks that memory allows.
        most_workers: how many members have room for a data block.
    """

    members: tuple[tuple[int, ...], ...]
    size: IntArray
    block_s: FloatArray
    link_s: FloatArray
    serve_s: FloatArray
    most_data: IntArray
    most_parameters: IntArray
    most_workers: IntArray


def group(problem: Problem) -> Kinds:
    """Group the machines of a problem; kinds are in the order of their first members."""
    members: dict[Machine, list[int]] = {}
    for i, machine in enumerate(problem.machines):
        members.setdefault(machine, []).append(i)
    size = np.array([len(group) for group in members.values()], np.int64)
    most_data = np.array([problem.most_data_blocks(machine) for machine in members], np.int64)
    return Kinds(
        tuple(tuple(group) for group in members.values()),
        size,
        np.array([machine.seconds_per_sample for machine in members]) * problem.samples_per_block,
        1.0 / np.array([machine.bandwidth for machine in members]),
        np.array([problem.serve_s_per_byte(machine) for machine in members]),
        most_data,
        np.array([problem.most_parameter_blocks(machine) for machine in members], np.int64),
        np.where(most_data == 0, 0, size),
    )
