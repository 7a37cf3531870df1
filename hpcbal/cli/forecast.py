"""`hpcbal forecast`: the throughput of any number of workers and servers, from one worker's trace."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path

from hpcbal.cli.options import Subparsers, add_json, positive, print_json, print_text
from hpcbal.processes import say

MOST_WORKERS = 4096
MOST_SAMPLES = 2**53
LINKS = ("shared", "in-turn")
_COUNTS = re.compile(r"([0-9]+)(?:\s*-\s*([0-9]+))?", re.ASCII)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(bps|bit/s|B/s)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMG]?)(i?)B", re.ASCII)
_TIMELINE, _CALIBRATION = b"\x1f\x8b", b'{\n  "s_per_byte"'
"""How the files begin that are written: gzip, and JSON."""
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "forecast",
        help="predict the throughput of parameter servers, from one worker's trace",
        description="Replay what one worker and one server were seen to do on any number of both: throughput "
        "of asynchronous training, where it saturates, and what limits it.",
    )
    parser.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", help="YAML file of a parameter-server job"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of CONFIG, e.g. --set mini_batch=64; may be repeated",
    )
    parser.add_argument(
        "--trace",
        dest="traces",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a trace (default: operations.jsonl in CONFIG's output directory); give two of different batch "
        "sizes to interpolate between them",
    )
    parser.add_argument(
        "--workers",
        type=_counts,
        default=list(range(1, 17)),
        metavar="N-N,...",
        help="numbers of workers (default: 1-16)",
    )
    parser.add_argument(
        "--servers", type=_counts, metavar="N,...", help="numbers of servers (default: as in the trace)"
    )
    _add_model(parser)
    _add_answers(parser)
    add_json(parser)
    parser.set_defaults(function=run)


def _add_model(parser: argparse.ArgumentParser) -> None:
    """Options that describe the machines and how they transfer."""
    parser.add_argument(
        "--bandwidth",
        type=_rate,
        metavar="RATE",
        help="of every link in each direction, e.g. 1Gbps or 125MB/s (default: CONFIG's machines)",
    )
    parser.add_argument(
        "--links",
        type=lambda text: text.replace("_", "-"),  # as the key of a file has it
        choices=LINKS,
        help="whether all transfers of a link share it, or it carries one message after another (default: as "
        "links of CONFIG say: in-turn if its machines emulate them, else shared)",
    )
    parser.add_argument(
        "--order",
        choices=("fifo", "tic"),
        default="fifo",
        help="in which workers get parameters: as recorded, or by TIC of TicTac",
    )
    parser.add_argument(
        "--window",
        type=_window,
        metavar="SIZE",
        help="after which HTTP/2 pauses a transfer once, or off (default: 28MB, as gRPC was seen to use; off "
        "for traces of hpcbal's own servers)",
    )
    parser.add_argument(
        "--parsing",
        type=_parsing,
        metavar="FILE|S_PER_BYTE,S_PER_TRANSFER",
        help="what parsing received data costs on this platform (default: nothing)",
    )
    parser.add_argument(
        "--measured",
        type=_measured,
        metavar="N[@RATE]",
        help="samples per second that the recorded worker reached alone without recording, and the bandwidth "
        "that it had (default: CONFIG's machines, else --bandwidth): what the trace does not explain is "
        "added to each step (default: nothing)",
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="only measure what parsing costs on this machine, and write FILE for --parsing",
    )
    parser.add_argument(
        "--batch-size",
        type=_samples,
        metavar="N",
        help="samples of a step of a worker (default: CONFIG's mini_batch, else as recorded); computation is "
        "taken to grow in proportion",
    )
    parser.add_argument(
        "--steps", type=positive, default=1000, metavar="N", help="to simulate (default: 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the steps that are drawn")


def _add_answers(parser: argparse.ArgumentParser) -> None:
    """Options that ask for more."""
    parser.add_argument(
        "--wanted", type=_above_0, metavar="N", help="find the cheapest machines for N samples per second"
    )
    parser.add_argument(
        "--prices",
        type=_prices,
        metavar="WORKER,SERVER",
        help="what a worker and a server cost (default: 1,1, so ranks)",
    )
    parser.add_argument(
        "--output", "--html", "-o", dest="page", type=Path, metavar="FILE", help="write a page with plots"
    )
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="write the first steps of the largest job as a Chrome trace (gzipped JSON, for Perfetto)",
    )


def run(args: argparse.Namespace) -> int:
    """Simulate every number of workers and servers, and print the table."""
    if args.calibrate is not None:
        return _calibrate(args)
    from hpcbal.cli.forecasting.inputs import read_inputs
    from hpcbal.cli.forecasting.text import forecast_all, render, to_dict
    from hpcbal.errors import InputError, PolicyError
    from hpcbal.telemetry.files.atomic_file import check_own

    for file in (args.timeline, args.page):
        if file is not None and not file.parent.is_dir():
            raise InputError(f"{file}: there is no directory {file.parent}; make it, or choose another place")
    if args.timeline is not None:
        check_own(args.timeline, _TIMELINE, "timeline")
    if args.page is not None:
        from hpcbal.cli.forecasting.page import write_forecast_page
        from hpcbal.report.page.page import START_OF_PAGE

        check_own(args.page, START_OF_PAGE, "page")
    if args.prices is not None and args.wanted is None:
        raise InputError("--prices: works with --wanted only; say how many samples per second are wanted")
    try:
        inputs = read_inputs(args)
        forecast = forecast_all(inputs, args.workers)
    except PolicyError as error:  # the trace or the options do not fit together
        raise InputError(str(error)) from error
    if args.timeline is not None:
        from hpcbal.cli.forecasting.page import write_timeline

        write_timeline(inputs, max(args.workers), args.timeline)
        say(f"hpcbal: wrote {args.timeline}")
    if args.page is not None:
        write_forecast_page(forecast, args.page)
        say(f"hpcbal: wrote {args.page}")
    if args.json:
        print_json(to_dict(forecast))
    else:
        print_text("\n".join(render(forecast)))
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    import json
    import time

    from hpcbal.errors import InputError
    from hpcbal.forecast.overhead import calibrate
    from hpcbal.telemetry.files.atomic_file import check_own, write_atomic

    if args.config is not None or args.traces or args.page is not None or args.timeline is not None:
        raise InputError("--calibrate: works alone; give its file with --parsing to a forecast")
    check_own(args.calibrate, _CALIBRATION, "calibration")
    found = calibrate(time.perf_counter)
    record = {"s_per_byte": found.s_per_byte, "s_per_transfer": found.s_per_transfer}
    write_atomic(args.calibrate, json.dumps(record, indent=2) + "\n")
    print_text(
        f"parsing: {found.s_per_byte:.3g} s per byte and {found.s_per_transfer:.3g} s per transfer, in "
        f"{args.calibrate}"
    )
    return 0


def _counts(text: str) -> list[int]:
    """`1-4,8` as ascending numbers >= 1, without repetitions."""
    found: set[int] = set()
    for part in text.split(","):
        match = _COUNTS.fullmatch(part.strip())
        low = int(match[1]) if match and len(match[1]) < 10 else 0
        high = low if match is None or match[2] is None else int(match[2]) if len(match[2]) < 10 else 0
        if not 1 <= low <= high <= MOST_WORKERS:
            raise argparse.ArgumentTypeError(
                f"got {part.strip()!r}, allowed: N or N-N, 1 or more, ascending, at most {MOST_WORKERS}"
            )
        found |= set(range(low, high + 1))
    return sorted(found)


def _samples(text: str) -> int:
    number = positive(text) if len(text) < 20 else MOST_SAMPLES + 1
    if number > MOST_SAMPLES:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a whole number, 1 to {MOST_SAMPLES}")
    return number


def _measured(text: str) -> tuple[float, float | None]:
    """`246` or `246@1Gbps`: samples per second, and bytes per second of the links."""
    value, at, rate = text.partition("@")
    return _above_0(value), _rate(rate) if at else None


def _rate(text: str) -> float:
    """`1Gbps` or `125MB/s` as bytes per second."""
    match = _RATE.fullmatch(text.strip())
    value = float(match[1]) * 1000.0 ** _POWERS[match[2]] if match else 0.0
    if match is None or not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a rate above 0 such as 1Gbps or 125MB/s")
    return value if match[3] == "B/s" else value / 8.0


def _window(text: str) -> float:
    """`28MB` as bytes; `off` as infinite."""
    if text == "off":
        return math.inf
    match = _SIZE.fullmatch(text.strip())
    base = 1024.0 if match and match[3] else 1000.0
    value = float(match[1]) * base ** _POWERS[match[2]] if match else 0.0
    if not value > 0.0:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, allowed: off, or a size above 0 such as 28MB or 64KiB"
        )
    return value


def _parsing(text: str) -> tuple[float, float] | Path:
    """`1e-9,2e-4` as two numbers, 0 or more; anything else is a file."""
    if "," not in text:
        return Path(text)
    return _two(text, lambda value: 0.0 <= value < math.inf, "a file, or two numbers, 0 or more")


def _prices(text: str) -> tuple[float, float]:
    return _two(text, lambda value: 0.0 < value < math.inf, "two numbers above 0")


def _two(text: str, is_allowed: Callable[[float], bool], allowed: str) -> tuple[float, float]:
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        first = second = math.nan
    if not (is_allowed(first) and is_allowed(second)):
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: {allowed}, with a comma between them")
    return first, second


def _above_0(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a number above 0")
    return value
