"""Group machines that no cost can distinguish, and what the user allows them to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.configuring.cost_model import ROLES, Machine, Problem, Role

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Restrictions:
    """What a configuration must keep to.

    Attributes:
        least_workers, most_workers: limits of the number of workers; None: no limit.
        least_servers, most_servers: likewise.
        roles: fixed roles by machine; a machine that must leave stands by.
    """

    least_workers: int = 1
    most_workers: int | None = None
    least_servers: int = 1
    most_servers: int | None = None
    roles: Mapping[int, Role] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, least, most in (
            ("workers", self.least_workers, self.most_workers),
            ("servers", self.least_servers, self.most_servers),
        ):
            if least < 1 or (most is not None and most < least):
                raise PolicyError(
                    f"{what}: got at least {least} and at most {most}, allowed: 1 <= least <= most"
                )
        for machine, role in self.roles.items():
            if role not in ROLES:
                raise PolicyError(f"machine {machine}: got {role!r}, allowed: {', '.join(ROLES)}")


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """Machines in groups of equals, without those that must stand by; arrays have one entry per kind.

    Attributes:
        members: machines of each kind, ascending.
        size: number of members.
        block_s: compute time of a data block.
        link_s: seconds per byte of the link.
        serve_s: seconds per byte as a server.
        most_data, most_parameters: most blocks that memory allows.
        fewest, most: how many members may be workers.
        must_serve: how many members must be servers.
    """

    members: tuple[tuple[int, ...], ...]
    size: IntArray
    block_s: FloatArray
    link_s: FloatArray
    serve_s: FloatArray
    most_data: IntArray
    most_parameters: IntArray
    fewest: IntArray
    most: IntArray
    must_serve: IntArray


def group(problem: Problem, restrictions: Restrictions) -> Kinds:
    """Group the machines of a problem; kinds are in the order of their first members.

    Raises: PolicyError: a fixed role belongs to a machine that does not exist.
    """
    unknown = sorted(set(restrictions.roles) - set(range(len(problem.machines))))
    if unknown:
        raise PolicyError(f"roles: got machine {unknown[0]}, allowed: 0..{len(problem.machines) - 1}")
    members: dict[tuple[Machine, Role | None], list[int]] = {}
    for i, machine in enumerate(problem.machines):
        role = restrictions.roles.get(i)
        if role != "standby":
            members.setdefault((machine, role), []).append(i)
    machines = [machine for machine, _ in members]
    roles = [role for _, role in members]
    size = np.array([len(group) for group in members.values()], np.int64)
    is_worker = np.array([role == "worker" for role in roles], np.bool_)
    is_server = np.array([role == "server" for role in roles], np.bool_)
    most_data = np.array([problem.most_data_blocks(machine) for machine in machines], np.int64)
    most = np.where(is_server | (most_data == 0), 0, size)
    if bool((is_worker & (most_data == 0)).any()):
        raise PolicyError("memory: a machine that must be a worker has no room for a data block")
    return Kinds(
        tuple(tuple(group) for group in members.values()),
        size,
        np.array([machine.seconds_per_sample for machine in machines]) * problem.samples_per_block,
        1.0 / np.array([machine.bandwidth for machine in machines]),
        np.array([problem.serve_s_per_byte(machine) for machine in machines]),
        most_data,
        np.array([problem.most_parameter_blocks(machine) for machine in machines], np.int64),
        np.where(is_worker, size, 0),
        most,
        np.where(is_server, size, 0),
    )
