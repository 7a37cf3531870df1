"""Burn cores with a load that comes and goes, to try balancing against real contention on any machine.

Each core has its own schedule: bursts of random length and strength with random pauses between them, the same
for the same seed. The kernel shares the core between the burner and other programs, so a burner of full
strength halves the speed of one trainer. A core that is named twice gets two burners, which come and go
together. Like the tasks of [LBBSP] Sec. 5.3, a burst can take memory as well. Burners end with the process
that started them, however it ends, and after the command that they accompany.

    python bench/contention/burn_cores.py --cores 1 --seconds 60
    python bench/contention/burn_cores.py --cores 0 1 --on 2 8 --off 4 12 -- hpcbal run my.yaml
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PERIOD_S = 0.02  # a burner of share 0.5 computes for half of each period
LOOK_EVERY_S = 0.1  # between checks for the parent's end, while idle
PAGE_BYTES = 4096
FOREVER_S = 1e6


@dataclass(frozen=True, slots=True)
class Burst:
    """One stretch of load.

    Attributes:
        begin_s, end_s: since the start, 0 <= begin_s < end_s.
        share: share of the core that the burner requests, 0 < share <= 1.
    """

    begin_s: float
    end_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Load:
    """The kind of load that comes and goes on one core.

    Attributes:
        on_s, off_s: shortest and longest burst, and pause before each burst, in seconds.
        shares: shares of the core; each burst draws one of them.
        mebibytes: memory that a burst holds.
    """

    on_s: tuple[float, float] = (2.0, 8.0)
    off_s: tuple[float, float] = (2.0, 8.0)
    shares: tuple[float, ...] = (1.0,)
    mebibytes: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in (("on", self.on_s), ("off", self.off_s)):
            if not 0.0 < least <= most:
                raise SystemExit(f"burn_cores: --{name}: got {least} {most}, allowed: 0 < least <= most")
        if not self.shares or not all(0.0 < share <= 1.0 for share in self.shares) or self.mebibytes < 0:
            raise SystemExit(
                f"burn_cores: got --shares {list(self.shares)} and --mebibytes {self.mebibytes}, allowed: "
                "shares above 0 and at most 1, 0 or more MiB"
            )


def schedule(load: Load, seed: int, core: int) -> Iterator[Burst]:
    """The endless bursts of one core; the same for the same seed and core."""
    rng = random.Random(f"{seed} {core}")
    now_s = 0.0
    while True:
        begin_s = now_s + rng.uniform(*load.off_s)
        now_s = begin_s + rng.uniform(*load.on_s)
        yield Burst(begin_s, now_s, rng.choice(load.shares))


def burn(core: int, load: Load, seed: int, seconds: float, parent: int) -> None:
    """Burn one core until `seconds` are over or the parent has ended; runs in a process of its own."""
    os.sched_setaffinity(0, {core})
    start_s = time.monotonic()
    for burst in schedule(load, seed, core):
        if burst.begin_s >= seconds:
            _sleep_until(start_s + seconds, parent)
            return
        if not _sleep_until(start_s + burst.begin_s, parent):
            return
        held = bytearray(load.mebibytes << 20)
        held[::PAGE_BYTES] = bytes([1]) * len(held[::PAGE_BYTES])  # only touched pages are in use
        if not _compute_until(start_s + min(burst.end_s, seconds), burst.share, parent):
            return
        del held


def _sleep_until(deadline_s: float, parent: int) -> bool:
    """Sleep; returns False as soon as the parent has ended."""
    while (left_s := deadline_s - time.monotonic()) > 0.0:
        if os.getppid() != parent:
            return False
        time.sleep(min(left_s, LOOK_EVERY_S))
    return os.getppid() == parent


def _compute_until(deadline_s: float, share: float, parent: int) -> bool:
    """Compute for `share` of each period; returns False as soon as the parent has ended."""
    value = 1
    while (now_s := time.monotonic()) < deadline_s:
        if os.getppid() != parent:
            return False
        while time.monotonic() < now_s + share * PERIOD_S:
            for _ in range(1000):
                value = (value * 1103515245 + 12345) % 2**31
        if share < 1.0:
            time.sleep((1.0 - share) * PERIOD_S)
    return True


@contextlib.contextmanager
def burning(cores: Sequence[int], load: Load, seed: int = 0, seconds: float = FOREVER_S) -> Iterator[None]:
    """Burn `cores` while the block runs, with one burner for each time that a core is named.

    Raises: SystemExit: this process may not use one of the cores, or a burner has failed.
    """
    usable = os.sched_getaffinity(0)
    if not set(cores) <= usable:
        raise SystemExit(f"burn_cores: --cores: got {list(cores)}, allowed: cores of {sorted(usable)}")
    context = multiprocessing.get_context("spawn")  # the caller may have threads
    burners = [
        context.Process(target=burn, args=(core, load, seed, seconds, os.getpid()), daemon=True)
        for core in cores
    ]
    for burner in burners:
        burner.start()
    try:
        yield
        if any(burner.exitcode for burner in burners):  # None while it lives
            raise SystemExit("burn_cores: a burner has failed, so there was less load than requested")
    finally:
        for burner in burners:
            burner.terminate()
        for burner in burners:
            burner.join()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usable = sorted(os.sched_getaffinity(0))
    parser.add_argument("--cores", type=int, nargs="+", default=usable, metavar="CORE", help="default: all")
    parser.add_argument("--on", type=float, nargs=2, default=(2.0, 8.0), metavar="S", help="least, most")
    parser.add_argument("--off", type=float, nargs=2, default=(2.0, 8.0), metavar="S", help="least, most")
    parser.add_argument(
        "--shares", type=float, nargs="+", default=(1.0,), help="shares of a core, one drawn per burst"
    )
    parser.add_argument("--mebibytes", type=int, default=0, metavar="N", help="memory of each burst")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="default: until stopped, or the command's end")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="command to run meanwhile, after --")
    args = parser.parse_args(argv)
    load = Load(tuple(args.on), tuple(args.off), tuple(args.shares), args.mebibytes)
    seconds = FOREVER_S if args.seconds is None else args.seconds
    parent = os.getppid()
    with (
        burning(args.cores, load, args.seed, seconds),
        contextlib.suppress(KeyboardInterrupt),
    ):
        if args.command:
            try:
                raise SystemExit(subprocess.run(args.command, check=False).returncode)
            except OSError as error:
                parser.error(f"{args.command[0]}: cannot be started: {error.strerror}")
        _sleep_until(time.monotonic() + seconds, parent)


if __name__ == "__main__":
    main()
