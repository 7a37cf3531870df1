"""A probe measures what others leave of the cores and the memory that this process may use."""

from __future__ import annotations

import itertools
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcbal.cluster.cgroup import ControlGroup, own_control_group
from hpcbal.telemetry.resources import resource_use
from hpcbal.telemetry.resources.resource_use import WINDOW_LOOKS, ResourceProbe, ResourceUse

Core = namedtuple("Core", "user nice system idle iowait irq softirq steal guest guest_nice")


class Machine:
    """Four cores whose clock only moves by hand; this process may use the first two.

    They are numbered as on a POWER machine that runs one of eight threads of each.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, procfs: Path) -> None:
        self.PROCFS_PATH = str(procfs)
        stat = ["cpu  4 4 4", "cpu0 1 1 1", "cpu8 1 1 1", "cpu16 1 1 1", "cpu24 1 1 1", "intr 7"]
        (procfs / "stat").write_text("\n".join(stat))
        self.clock_s = self.own_s = 0.0
        self.busy_s = [0.0] * 4
        self.available = 75
        self.nice_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.clock_s, process_time=lambda: self.own_s)
        monkeypatch.setattr(resource_use, "time", clock)
        monkeypatch.setattr(resource_use, "_psutil", lambda: self)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 8})

    def run(self, seconds: float, own_s: float, others_s: tuple[float, ...]) -> None:
        """Time passes; this process computes on its first core."""
        self.clock_s += seconds
        self.own_s += own_s
        self.busy_s[0] += own_s
        self.busy_s = [busy + other for busy, other in zip(self.busy_s, others_s, strict=True)]

    def cpu_times(self, percpu: bool) -> list[Core]:
        return [Core(busy - self.nice_s, self.nice_s, 0, 9.0, 0, 0, 0, 0, busy, 0) for busy in self.busy_s]

    def virtual_memory(self) -> SimpleNamespace:
        return SimpleNamespace(total=100, available=self.available)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def a_probe(group: ControlGroup | None = None) -> ResourceProbe:
    probe = ResourceProbe(group or ControlGroup(), in_background=False)
    assert probe.read() == ResourceUse(None, None)
    probe.look()
    return probe


def test_what_this_process_takes_does_not_count(machine: Machine) -> None:
    probe = a_probe()
    assert probe.read() == ResourceUse(None, 0.25)
    machine.run(1.0, own_s=0.9, others_s=(0.0, 0.0, 0.0, 0.0))
    probe.look()
    assert probe.read().cpu_share == pytest.approx(1.0)


def test_what_others_take_of_the_own_cores_counts_and_of_other_cores_does_not(machine: Machine) -> None:
    probe = a_probe()
    machine.run(2.0, own_s=1.0, others_s=(1.0, 0.5, 2.0, 2.0))
    probe.look()
    assert probe.read().cpu_share == pytest.approx(1.0 - 1.5 / 4.0)


@pytest.mark.parametrize("cores", [{32}, {0, 32}])
def test_cores_that_are_not_listed_report_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, cores: set[int]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: cores)
    probe = a_probe()
    machine.run(1.0, own_s=0.5, others_s=(0.0, 0.0, 0.0, 0.0))
    probe.look()
    assert probe.read() == ResourceUse(None, 0.25)


def test_cores_are_known_by_their_numbers_when_others_are_switched_off(machine: Machine) -> None:
    probe = a_probe()
    stat = Path(machine.PROCFS_PATH, "stat")
    stat.write_text(stat.read_text().replace("cpu16 1 1 1\n", ""))
    del machine.busy_s[2]
    for _ in range(2):
        machine.run(1.0, own_s=0.0, others_s=(0.25, 0.25, 1.0))
        probe.look()
    assert probe.read().cpu_share == pytest.approx(0.75)


def test_only_the_last_moment_counts(machine: Machine) -> None:
    probe = a_probe()
    machine.run(1.0, own_s=0.0, others_s=(1.0, 1.0, 0.0, 0.0))
    probe.look()
    assert probe.read().cpu_share == pytest.approx(0.0)
    for _ in range(WINDOW_LOOKS):
        machine.run(0.1, own_s=0.0, others_s=(0.0, 0.0, 0.0, 0.0))
        probe.look()
    assert probe.read().cpu_share == pytest.approx(1.0)


def test_work_of_low_priority_counts_too(machine: Machine) -> None:
    probe = a_probe()
    machine.run(1.0, own_s=0.0, others_s=(0.5, 0.0, 0.0, 0.0))
    machine.nice_s = 0.5
    probe.look()
    assert probe.read().cpu_share == pytest.approx(0.75)


def test_a_quota_counts_what_the_group_uses_of_it(machine: Machine, tmp_path: Path) -> None:
    used = tmp_path / "cpu.stat"
    used.write_text("usage_usec 0\n")
    probe = a_probe(ControlGroup(cpu_limit=1.0, cpu_used=used))
    used.write_text("usage_usec 1000000\nuser_usec 7\n")
    machine.run(1.0, own_s=0.4, others_s=(0.0, 0.6, 0.0, 0.0))
    probe.look()
    assert probe.read().cpu_share == pytest.approx(0.4)


def test_the_tighter_limit_of_memory_counts(machine: Machine, tmp_path: Path) -> None:
    used = tmp_path / "memory.current"
    used.write_text("30\n")
    assert a_probe(ControlGroup(40, used)).read().memory_share == 0.75
    assert a_probe(ControlGroup(400, used)).read().memory_share == 0.25
    used.with_name("memory.stat").write_text("anon 20\ninactive_file 10\n")  # the kernel gives them away
    assert a_probe(ControlGroup(40, used)).read().memory_share == 0.5


def test_a_probe_that_fails_reports_nothing_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(probe: ResourceProbe) -> None:
        probe._use = ResourceUse(0.5, 0.5)
        raise AttributeError("iowait")

    monkeypatch.setattr(ResourceProbe, "look", fail)
    probe, end = ResourceProbe(), time.monotonic() + 20.0
    while "can no longer be measured" not in caplog.text and time.monotonic() < end:
        time.sleep(0.01)
    assert "can no longer be measured" in caplog.text
    assert probe.read() == ResourceUse(None, None)


@pytest.mark.parametrize(("step_s", "interval_s"), [(0.1, 0.075), (2.0, 0.125), (60.0, 0.5)])
def test_between_slow_steps_looks_are_rarer_and_none_comes_in_their_first_half(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, step_s: float, interval_s: float
) -> None:
    monkeypatch.setattr(resource_use.time, "thread_time", lambda: 0.0, raising=False)
    probe = ResourceProbe(ControlGroup(), in_background=False)
    reads_s: list[float] = []
    looks_s: list[float] = []

    def wait(seconds: float) -> bool:
        """Time passes; whenever a step has ended meanwhile, the shares are read."""
        until_s = machine.clock_s + seconds
        while (end_s := (len(reads_s) + 1) * step_s) <= until_s:
            machine.run(end_s - machine.clock_s, 0.0, (0.0,) * 4)
            probe.read()
            reads_s.append(end_s)
        machine.run(until_s - machine.clock_s, 0.0, (0.0,) * 4)
        return len(reads_s) >= 8

    def look() -> None:
        looks_s.append(machine.clock_s)

    monkeypatch.setattr(probe, "_ended", SimpleNamespace(wait=wait))
    monkeypatch.setattr(probe, "look", look)
    probe._keep_looking()
    for began_s, ended_s in itertools.pairwise(reads_s[1:]):
        between = [look_s - began_s for look_s in looks_s if began_s < look_s <= ended_s]
        gaps = [b - a for a, b in itertools.pairwise(between)]
        assert gaps == pytest.approx([interval_s] * len(gaps))
        if interval_s > 0.075:
            assert step_s / 2 - 1e-9 <= between[0] <= step_s / 2 + interval_s
            assert between[-1] >= step_s - interval_s - 1e-9


def test_steps_that_get_quicker_are_looked_at_soon(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_use.time, "thread_time", lambda: 0.0, raising=False)
    probe = a_probe()
    for _ in range(3):
        machine.run(20.0, 0.0, (0.0,) * 4)
        probe.read()
    waits_s: list[float] = []

    def wait(seconds: float) -> bool:
        """Steps take 0.1 s now."""
        machine.run(0.1, 0.0, (0.0,) * 4)
        probe.read()
        machine.run(max(0.0, seconds - 0.1), 0.0, (0.0,) * 4)
        waits_s.append(seconds)
        return bool(looks_s)

    looks_s: list[float] = []
    monkeypatch.setattr(probe, "_ended", SimpleNamespace(wait=wait))
    monkeypatch.setattr(probe, "look", lambda: looks_s.append(machine.clock_s))
    probe._keep_looking()
    assert looks_s[0] <= 60.0 + 1.0


def test_a_pause_between_steps_does_not_put_off_looks_for_long(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = a_probe()
    for seconds in (2.0, 50.0):
        machine.run(seconds, 0.0, (0.0,) * 4)
        probe.read()
    assert probe._calm_s() == pytest.approx(1.0)
    machine.run(2.0, 0.0, (0.0,) * 4)
    probe.read()
    assert (probe._calm_s(), probe._interval_s) == (pytest.approx(1.0), pytest.approx(0.125))


def test_without_psutil_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_use, "_psutil", lambda: None)
    probe = ResourceProbe()
    probe.look()
    assert probe.read() == ResourceUse(None, None)


def test_this_very_machine_is_watched_in_the_background() -> None:
    probe, end = ResourceProbe(), time.monotonic() + 20.0
    while (seen := probe.read()).cpu_share is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    probe.close()
    assert 0.0 <= seen.cpu_share <= 1.0
    assert seen.memory_share is not None
    assert 0.0 < seen.memory_share < 1.0


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_tightest_limit_on_the_way_up_is_found(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/job/step\n")
    root = tmp_path / "fs"
    write(root / "job", memory__max="1000\n", memory__current="400\n", cpu__max="150000 100000\n")
    write(root / "job" / "step", memory__max="max\n", cpu__max="max 100000\n")
    found = own_control_group(root, membership)
    assert found == ControlGroup(1000, root / "job/memory.current", 1.5, root / "job/cpu.stat")
    assert found.memory_share() == 0.4
    assert found.cpu_seconds() is None


def test_of_version_1_the_memory_is_read(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("9:name=systemd:/\n4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n")
    folder = tmp_path / "memory" / "job"
    write(folder, memory__limit_in_bytes="500\n", memory__usage_in_bytes="50\n")
    write(tmp_path / "memory", memory__limit_in_bytes=f"{2**63 - 4096}\n")
    assert own_control_group(tmp_path, membership) == ControlGroup(500, folder / "memory.usage_in_bytes")


def test_of_equal_limits_the_uppermost_counts_because_more_processes_use_it(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/job/task\n")
    write(tmp_path / "job", memory__max="1000\n", memory__current="900\n")
    write(tmp_path / "job" / "task", memory__max="1000\n", memory__current="200\n")
    assert own_control_group(tmp_path, membership).memory_left_bytes() == 100


def test_memory_that_holds_files_is_left(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/job\n")
    files = "cache 300\ninactive_file 100\nactive_file 150\n"
    folder = tmp_path / "memory" / "job"
    write(folder, memory__limit_in_bytes="500\n", memory__usage_in_bytes="450\n", memory__stat=files)
    assert own_control_group(tmp_path, membership).memory_left_bytes() == 300
    assert own_control_group(tmp_path, tmp_path / "nothing").memory_left_bytes() is None


def test_no_control_groups_mean_no_limits(tmp_path: Path) -> None:
    found = own_control_group(tmp_path, tmp_path / "nothing")
    assert found == ControlGroup()
    assert found.memory_share() == 0.0
