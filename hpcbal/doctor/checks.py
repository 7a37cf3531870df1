"""Judge the facts: each function takes what was measured and returns findings, and asks nothing itself.

A `Finding` is one line of the doctor: ok, warning or error, on which nodes, and what to do.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcbal.cluster.cgroup import Cores, num_usable
from hpcbal.cluster.launch_line import MOST_RANKS_PER_CORE
from hpcbal.cluster.started import BatchJob, Launcher
from hpcbal.doctor.child import Answer
from hpcbal.errors import ClusterError
from hpcbal.training.devices import check_gpus_seen, positive

OK, WARNING, ERROR = "ok", "warning", "error"
LEVELS = (OK, WARNING, ERROR)
MOST_HOSTS = 4
"""Nodes that a line names; of more it gives the number."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check.

    Attributes:
        check: name of the check.
        level: `ok`, `warning` or `error`.
        text: what was found.
        do: what to do; empty if all is well.
        hosts: the nodes where it was found; empty if it is not about a node.
    """

    check: str
    level: str
    text: str
    do: str = ""
    hosts: tuple[str, ...] = ()

    def on(self, host: str) -> Finding:
        """Return the finding of a node."""
        return replace(self, hosts=(host,))

    def sentence(self) -> str:
        """Return the finding without its level, for messages."""
        where = f"{named(self.hosts)}: " if self.hosts else ""
        return f"{self.check}: {where}{self.text}" + (f"; {self.do}" if self.do else "")


def named(hosts: Sequence[str]) -> str:
    """Return the names of nodes, or how many they are."""
    return ", ".join(hosts) if len(hosts) <= MOST_HOSTS else f"{len(hosts)} nodes ({hosts[0]}, ...)"


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of all nodes, each once with all its nodes, in the order of the checks."""
    hosts: dict[Finding, list[str]] = {}
    for finding in findings:
        hosts.setdefault(replace(finding, hosts=()), []).extend(finding.hosts)
    checks = list(dict.fromkeys(finding.check for finding in hosts))
    found = [replace(finding, hosts=tuple(dict.fromkeys(names))) for finding, names in hosts.items()]
    return sorted(found, key=lambda finding: checks.index(finding.check))  # stable


def text_of(findings: Sequence[Finding], num_nodes: int) -> str:
    """Return the lines that people read.

    Args:
        findings: from `merged`.
        num_nodes: nodes that were asked; with one, no line names it.
    """
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        where = f" ({named(finding.hosts)})" if num_nodes > 1 and 0 < len(finding.hosts) < num_nodes else ""
        lines.append(f"{finding.level:<8} {finding.check:<{width}}  {finding.text}{where}")
        if finding.do:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.do}")
    counts = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    lines.append(
        f"{counts[OK]} ok, {counts[WARNING]} warning{'' if counts[WARNING] == 1 else 's'}, "
        f"{counts[ERROR]} error{'' if counts[ERROR] == 1 else 's'}"
    )
    return "\n".join(lines)


MIB, GIB = 2**20, 2**30
LEAST_SHARED_BYTES = 64 * MIB
ENOUGH_SHARED_BYTES = 512 * MIB
"""The ring of 256 MiB, which is the default, and as much again for MPI and the cache."""
LEAST_DISK_BYTES, ENOUGH_DISK_BYTES = 100 * MIB, GIB
FEW_INODES = 1000
SLOW_FILE_S = 1.0
MOST_CLOCK_S = 1.0
MOST_SLOWER = 0.2
"""A node that takes this much longer than the median is named."""
SLOW_ALLREDUCE_S = 0.5

TITLES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}


def size(num_bytes: float) -> str:
    """Return a number of bytes for people."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.0f} MiB"


def allocation(job: BatchJob | None, launcher: Launcher | None, left_s: float | None) -> Finding:
    """Say where this runs: the batch job, its end, and the launcher."""
    parts = []
    if job is not None:
        task = f", task {job.array_task} of an array" if job.array_task else ""
        components = f", {job.components} components" if job.components > 1 else ""
        end = "no time limit known" if left_s is None else f"{left_s / 60:.0f} minutes left"
        parts.append(f"{job.system} job {job.job_id}{task}{components}, {end}")
    parts.append("no launcher" if launcher is None else f"started by {launcher.name}")
    if left_s is not None and left_s < 120.0:
        return Finding("allocation", WARNING, ", ".join(parts), "request more time")
    return Finding("allocation", OK, ", ".join(parts))


def mpi(
    library: str, thread_level: str, num_ranks: int, num_nodes: int, launched_on: int | None = None
) -> Finding:
    """Judge the level of threads that MPI allows, and the nodes that it finds.

    Args:
        thread_level: `multiple`, `serialized`, `funneled` or `single`.
        num_ranks, num_nodes: as MPI says; ranks that share memory are on one node.
        launched_on: nodes on which the launcher has started ranks; None: it does not say.
    """
    ranks = (
        f"{num_ranks} rank{'' if num_ranks == 1 else 's'} on {num_nodes} node{'' if num_nodes == 1 else 's'}"
    )
    text = f"{library}, {ranks}, threads: {thread_level}"
    if launched_on is not None and launched_on != num_nodes:
        do = "if ranks run in containers, let those of one node share /dev/shm and process numbers"
        return Finding("MPI", WARNING, f"{text}, but the launcher says {launched_on} nodes", do)
    if thread_level == "multiple":
        return Finding("MPI", OK, text)
    return Finding(
        "MPI",
        WARNING,
        text,
        "trainers cannot fetch samples while they compute; use an MPI built with MPI_THREAD_MULTIPLE",
    )


_FAMILIES = (
    ("Open MPI", r"\(Open MPI\)|OpenRTE|PRRTE|prte"),
    ("Intel MPI", r"Intel\(R\) MPI"),
    ("MPICH", r"HYDRA|MPICH"),
)


def launcher_of_library(said: str | None, library: str, what: str) -> Finding | None:
    """Compare a launcher's own words about its version with the MPI library of mpi4py; None if they fit.

    Args:
        said: what `mpirun --version` has printed, or `Open MPI 5.0.11` from the launcher's environment.
        library: such as `Open MPI 5.0.11`.
        what: the launcher, for the message.
    """
    if not said:
        return None
    family = next((name for name, words in _FAMILIES if re.search(words, said) or name in said), None)
    ours = next((name for name, _ in _FAMILIES if library.startswith(name)), None)
    version = re.search(r"\d+\.\d+[.\d]*", said)
    theirs = f"{family} {version[0]}" if family and version else (family or said.splitlines()[0][:60])
    do = "start with the mpirun of mpi4py's MPI ('hpcbal run' alone finds it), or rebuild mpi4py for this one"
    if family is None or ours is None:
        return None
    if family != ours:
        text = f"{what} is of {theirs}, but mpi4py uses {library}: each process would be alone"
        return Finding("launcher", ERROR, text, do)
    major = re.search(r" (\d+)\.", library)
    if family == "Open MPI" and version and major and version[0].split(".")[0] != major[1]:
        return Finding("launcher", WARNING, f"{what} is of {theirs}, mpi4py uses {library}", do)
    return None


def container(name: str | None, library: str, launcher: Launcher | None) -> list[Finding]:
    """Say that this runs in a container, whose MPI must speak with the launcher.

    The launcher may be the host's, or run in the same container: its variables do not say.

    Args:
        name: of the container; None outside of one.
    """
    if name is None:
        return []
    by = "" if launcher is None else f", started by {launcher.name}"
    return [Finding("container", OK, f"{name} with {library}{by}")]


def shared_memory(path: str, facts: Mapping[str, int] | None) -> Finding:
    """Judge the space for windows that the ranks of a node share.

    Args:
        path: where MPI keeps them.
        facts: `free_bytes`, `total_bytes` and `free_inodes` (-1: no limit); None if nothing can be written.
    """
    more = f"give the node or container a larger {path} (docker --shm-size, or --ipc=host)"
    if facts is None:
        return Finding(
            "shared memory", ERROR, f"{path} is missing or cannot be written", f"mount a tmpfs at {path}"
        )
    free, total = facts["free_bytes"], facts["total_bytes"]
    text = f"{path}: {size(free)} of {size(total)} free"
    if free < LEAST_SHARED_BYTES or 0 <= facts["free_inodes"] < 16:
        return Finding("shared memory", ERROR, text, f"remove files of jobs that are over, or {more}")
    if free < ENOUGH_SHARED_BYTES:
        return Finding(
            "shared memory", WARNING, text, f"set dataplane.ring_bytes below half of it, or {more}"
        )
    return Finding("shared memory", OK, text)


def window(share: int, launched: int | None) -> Finding:
    """Judge how many ranks of a node share memory.

    Args:
        share: ranks that share a window.
        launched: ranks that the launcher has started on this node; None: it does not say.
    """
    text = f"{share} rank{' shares' if share == 1 else 's share'} memory"
    if launched is not None and share < launched:
        return Finding(
            "shared window",
            WARNING,
            f"{text}, but {launched} were started on this node",
            "let containers of one node share /dev/shm and process numbers, as Apptainer does",
        )
    return Finding("shared window", OK, text)


def framework(name: str, answer: Answer, granted: str | None, *, another_sees: bool = False) -> Finding:
    """Judge how a library was imported, and whether it sees the devices that the job has.

    Args:
        name: `tensorflow` or `torch`.
        answer: of a child that has imported it: `version`, `devices` (how many), `built` (whether for GPUs).
        granted: how devices were given; None: they were not.
        another_sees: whether another framework sees devices, so that this one may not be meant.
    """
    title = TITLES[name]
    if answer.facts is None:
        return Finding(
            title,
            ERROR,
            f"cannot be imported ({answer.fault})",
            f"load the modules of the set-up, or install it again (pip install 'hpcbal[{name}]')",
        )
    facts = answer.facts
    devices = int(facts["devices"])
    text = f"{facts['version']}, {devices} GPU{'' if devices == 1 else 's'}"
    if not devices:
        try:
            check_gpus_seen(title, "auto", granted, built_with_gpus=bool(facts["built"]))
        except ClusterError as error:
            text, _, do = str(error).partition("; ")
            return Finding(title, WARNING if another_sees else ERROR, text, do)
    return Finding(title, OK, text)


def no_framework() -> Finding:
    """Say that neither framework is installed."""
    return Finding(
        "frameworks",
        WARNING,
        "neither TensorFlow nor PyTorch is installed, so only emulated runs are possible here",
        "pip install 'hpcbal[tensorflow]' or 'hpcbal[torch]'",
    )


def devices(seen: Sequence[Sequence[str]]) -> Finding:
    """Say which devices the ranks of a node see.

    Args:
        seen: by rank, from `visible_gpus`.
    """
    together = list(dict.fromkeys(device for some in seen for device in some))
    if not together:
        return Finding("devices", OK, "no GPU in the masks, nor by the drivers of NVIDIA and AMD")
    shown = ", ".join(device if len(device) <= 12 else f"{device[:12]}..." for device in together[:8])
    more = ", ..." if len(together) > 8 else ""
    return Finding("devices", OK, f"{len(together)} by masks and drivers: {shown}{more}")


def cores(of_ranks: Sequence[Cores], num_on_node: int, omp: str | None) -> Finding:
    """Judge the cores of a node's ranks.

    Args:
        of_ranks: by rank.
        num_on_node: cores of the machine, whoever may use them.
        omp: `OMP_NUM_THREADS`; None: not set.
    """
    usable = num_usable(of_ranks)
    threads = "" if omp is None else f", OMP_NUM_THREADS={omp}"
    count = len(of_ranks)
    text = f"{usable} of {num_on_node} for {count} rank{'' if count == 1 else 's'}{threads}"
    if omp is not None and positive(omp.split(",")[0]) is None:
        do = "the run ignores it: unset OMP_NUM_THREADS, or set it to a whole number above 0"
        return Finding("cores", WARNING, text, do)
    if count > MOST_RANKS_PER_CORE * usable and num_on_node > usable:
        do = "request more cores for each rank (--cpus-per-task), or start with mpirun --bind-to none"
        return Finding("cores", WARNING, text, do)
    return Finding("cores", OK, text)


def collectives(num_ranks: int, num_bytes: int, seconds: float, *, is_right: bool) -> Finding:
    """Judge an all-reduce.

    Args:
        seconds: the best of some.
        is_right: whether all ranks have the sum.
    """
    text = f"all-reduce of {size(num_bytes)} over {num_ranks} ranks in {1e3 * seconds:.1f} ms"
    if not is_right:
        return Finding(
            "collectives", ERROR, f"{text}, with a wrong sum", "use another MPI, or another transport of it"
        )
    if seconds > SLOW_ALLREDUCE_S:
        do = "see whether MPI uses the fast network (docs/batch-jobs.md, 'Which MPI')"
        return Finding("collectives", WARNING, text, do)
    return Finding("collectives", OK, text)


def output(path: str, answer: Answer) -> list[Finding]:
    """Judge the file system of the output.

    Args:
        path: the directory of the run.
        answer: of a child that has tried it: `fault` (of the first step that failed; empty), `kind` (of the
            file system), `free_bytes`, `free_inodes` (-1: no limit), `locks`, `replaces`, `appends` and
            `seconds` (for one small file).
    """
    elsewhere = "choose another directory with --output or output.dir"
    facts = answer.facts
    if facts is None or facts["fault"]:
        fault = answer.fault if facts is None else facts["fault"]
        return [Finding("output", ERROR, f"{path}: {fault}", elsewhere)]
    text = f"{path}: {size(facts['free_bytes'])} free ({facts['kind']})"
    found = []
    if facts["free_bytes"] < LEAST_DISK_BYTES:
        found.append(Finding("output", ERROR, text, f"free space, or {elsewhere}"))
    elif facts["free_bytes"] < ENOUGH_DISK_BYTES or 0 <= facts["free_inodes"] < FEW_INODES:
        found.append(
            Finding(
                "output", WARNING, f"{text}, {facts['free_inodes']} inodes", f"free space, or {elsewhere}"
            )
        )
    for fact, what in (
        ("replaces", "a file cannot be replaced at once"),
        ("appends", "appended lines get lost"),
    ):
        if not facts[fact]:
            found.append(Finding("output", ERROR, f"{path}: {what}", elsewhere))
    if not facts["locks"]:
        do = "see that no two runs use one directory; for HDF5 export HDF5_USE_FILE_LOCKING=FALSE"
        found.append(Finding("output", WARNING, f"{path}: files cannot be locked", do))
    if facts["seconds"] > SLOW_FILE_S:
        text = f"{path}: a small file takes {facts['seconds']:.1f} s"
        found.append(Finding("output", WARNING, text, elsewhere))
    return found or [Finding("output", OK, text)]


def shared_output(path: str, *, is_seen: bool, is_locked: bool) -> Finding | None:
    """Judge, on another node, the file that the first node has made and locked.

    Args:
        path: the directory of the run.
        is_seen: whether the file is there.
        is_locked: whether its lock holds here.
    """
    if not is_seen:
        do = "choose a directory that all nodes share"
        return Finding("output", ERROR, f"{path}: a file of the first node is not seen here", do)
    if not is_locked:
        do = "see that no two runs use one directory"
        return Finding("output", WARNING, f"{path}: locks do not reach other nodes", do)
    return None


def clocks(offset_s_by_host: Mapping[str, float]) -> list[Finding]:
    """Judge the clocks of nodes against that of the first one.

    Args:
        offset_s_by_host: seconds by which each other node is ahead.
    """
    wrong = {host: offset for host, offset in offset_s_by_host.items() if abs(offset) > MOST_CLOCK_S}
    if wrong:
        do = "ask the site to synchronise them; times in the report and 'status' are wrong by so much"
        return [
            Finding(
                "clocks", WARNING, f"{abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}", do, (host,)
            )
            for host, offset in wrong.items()
        ]
    most = max((abs(offset) for offset in offset_s_by_host.values()), default=0.0)
    return [Finding("clocks", OK, f"at most {1e3 * most:.0f} ms apart")] if offset_s_by_host else []


def speeds(seconds_by_host: Sequence[tuple[str, float]]) -> list[Finding]:
    """Name the nodes that compute more slowly than the median.

    Of two nodes the faster one is no measure: other load on the slower one would look like a slow node. So a
    node is compared with the median of three or more, and of two with the mean of both.

    Args:
        seconds_by_host: of a short computation, the best of some, for each node.
    """
    if len(seconds_by_host) < 2:
        return []
    median_s = statistics.median([seconds for _, seconds in seconds_by_host])
    found = []
    for host, seconds in seconds_by_host:
        slower = seconds / median_s - 1.0
        if slower > MOST_SLOWER:
            text = f"{100 * slower:.0f} % slower than the median of {len(seconds_by_host)} nodes"
            do = "end other load on it, leave it out (sbatch --exclude), or set balance.policy: fitted"
            found.append(Finding("speed", WARNING, text, do, (host,)))
    most = max(seconds / median_s for _, seconds in seconds_by_host) - 1.0
    return found or [Finding("speed", OK, f"the slowest node is {100 * most:.0f} % slower than the median")]


def facts_as_json(findings: Sequence[Finding], num_ranks: int, hosts: Sequence[str]) -> dict[str, Any]:
    """Return the findings as data."""
    return {
        "ok": all(finding.level != ERROR for finding in findings),
        "ranks": num_ranks,
        "nodes": list(hosts),
        "checks": [
            {
                "check": finding.check,
                "level": finding.level,
                "text": finding.text,
                "do": finding.do,
                "nodes": list(finding.hosts),
            }
            for finding in findings
        ],
    }
