"""Read the inputs of a forecast: the trace, the machines, and how they transfer."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal.cli.options import print_warning
from hpcbal.errors import InputError
from hpcbal.forecast import Links, Settings, Topology, Trace
from hpcbal.forecast.overhead import NO_PARSING, ParsingOverhead, with_step_overhead
from hpcbal.forecast.prediction import Prices, TracedJob, step_overhead
from hpcbal.forecast.trace import interpolated, on_servers, scaled
from hpcbal.forecast.trace_file import read_trace
from hpcbal.telemetry.files.run_directory import RunDirectory

if TYPE_CHECKING:
    from hpcbal.config import ParamServerConfig


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a forecast.

    Attributes:
        name: of the job.
        files: the traces.
        trace: for the batch size that is asked for, on the recorded number of servers.
        servers: numbers of servers to try.
        bytes_per_s: of every link; None: as the file's machines say.
        config: of the job, if there is one.
        wanted: samples per second to find machines for.
        step_overhead_s: that is added to each step, see `with_step_overhead`; the trace has it.
    """

    name: str
    files: tuple[Path, ...]
    trace: Trace
    servers: tuple[int, ...]
    bytes_per_s: float | None
    config: ParamServerConfig | None
    parsing: ParsingOverhead
    settings: Settings
    wanted: float | None
    prices: Prices
    step_overhead_s: float = 0.0

    @property
    def num_operations(self) -> int:
        """Number of recorded operations, without the overhead that was added to each step."""
        return len(self.trace.operations) - (1 if self.step_overhead_s else 0)

    def job(self, num_workers: int, num_servers: int) -> TracedJob:
        """The job on so many workers and servers."""
        trace = on_servers(self.trace, num_servers)
        return TracedJob(trace, self._cluster(num_workers, num_servers), self.parsing, self.settings)

    def _cluster(self, num_workers: int, num_servers: int) -> Topology:
        """The first executors work, the ones after them serve, as when a job starts."""
        links = [self._links(executor) for executor in range(num_workers + num_servers)]
        servers = [Links(each.down_bytes_per_s, each.up_bytes_per_s) for each in links[num_workers:]]
        if any(math.isinf(each.down_bytes_per_s) for each in servers):
            raise InputError("the bandwidth of servers is not known; give --bandwidth, such as 1Gbps")
        return Topology(tuple(links[:num_workers]), tuple(servers))

    def _links(self, executor: int) -> Links:
        if self.config is None:
            rate = self.bytes_per_s or math.inf
            return Links(rate, rate)
        from hpcbal.planning.throughput import links_of

        return links_of(self.config, executor, self.bytes_per_s)


def read_inputs(args: argparse.Namespace) -> Inputs:
    """Read the files that the command line names.

    Raises:
        InputError: something is missing, or does not fit together.
        ConfigError: the configuration is wrong.
    """
    config = None if args.config is None else _config(args)
    if config is None and args.overrides:
        raise InputError("--set: works with CONFIG only; give CONFIG")
    files = tuple(args.traces) or _trace_of_run(args, config)
    if args.measured is not None and len(files) > 1:
        raise InputError("--measured: works with one trace only; leave it out, or give one trace")
    if len(files) > 2:
        raise InputError(f"--trace: got {len(files)} files, allowed: 1, or 2 of different batch sizes")
    traces = [read_trace(file) for file in files]
    batch_size = args.batch_size or (traces[0].samples_per_step if config is None else config.mini_batch)
    if len(traces) == 2:
        trace = interpolated(traces, batch_size)
    else:
        trace = traces[0]
        trace = trace if batch_size == trace.samples_per_step else scaled(trace, batch_size)
    window = args.window or (math.inf if trace.splits else Settings().window_bytes)
    inputs = Inputs(
        name=files[0].stem if config is None else config.name,
        files=files,
        trace=trace,
        servers=tuple(args.servers or [trace.num_servers]),
        bytes_per_s=args.bandwidth,
        config=config,
        parsing=_parsing(args.parsing),
        settings=Settings(args.steps, _seed(args.seed), args.order, window, _are_in_turn(args, config)),
        wanted=args.wanted,
        prices=Prices(*(args.prices or (1.0, 1.0))),
    )
    return inputs if args.measured is None else _with_overhead(inputs, traces[0], args)


def _with_overhead(inputs: Inputs, recorded_trace: Trace, args: argparse.Namespace) -> Inputs:
    """Add what steps of the recorded worker took beside their operations, for any batch size.

    The recorded worker got parameters in the recorded order, and had the links of `--measured`, else those of
    CONFIG: what else the command line says of both is asked for, and was not measured.
    """
    samples_per_s, bytes_per_s = args.measured
    in_turn = inputs.settings.in_turn
    if bytes_per_s is None:
        emulated = inputs.config is not None and any(each.bandwidth for each in inputs.config.machines)
        bytes_per_s, in_turn = (None, True) if emulated else (inputs.bytes_per_s, in_turn)
    settings = replace(inputs.settings, order="fifo", in_turn=in_turn)
    recorded = replace(inputs, trace=recorded_trace, bytes_per_s=bytes_per_s, settings=settings)
    seconds = step_overhead(recorded.job(1, recorded_trace.num_servers), samples_per_s)
    if seconds < 0.0:
        step_s = recorded_trace.samples_per_step / samples_per_s
        print_warning(
            f"--measured: with {samples_per_s:g} samples/s a step takes {1e3 * step_s:.4g} ms, less than the "
            f"operations of the trace, which take {1e3 * (step_s - seconds):.4g} ms; nothing is added to "
            "them. Check the number, and the bandwidth at which it was measured (N@RATE)"
        )
        return inputs
    return replace(inputs, trace=with_step_overhead(inputs.trace, seconds), step_overhead_s=seconds)


def _are_in_turn(args: argparse.Namespace, config: ParamServerConfig | None) -> bool:
    """Whether links carry one message after another: as asked for, or as those of the file do."""
    if args.links is not None:
        return bool(args.links == "in-turn")
    if config is None or (args.bandwidth is not None and config.links == "auto"):
        return False
    return config.link_model == "in_turn"


def _config(args: argparse.Namespace) -> ParamServerConfig:
    from hpcbal.config import ParamServerConfig, load_of_kind

    hint = "; hpcbal simulate predicts others"
    config = load_of_kind(ParamServerConfig, args.config, args.overrides, warn=print_warning, hint=hint)
    if config.staleness is not None:
        raise InputError(
            f"{args.config}: consistency: a forecast is of workers that run freely; "
            "set it to async, or use hpcbal simulate"
        )
    return config


def _trace_of_run(args: argparse.Namespace, config: ParamServerConfig | None) -> tuple[Path, ...]:
    if config is None:
        raise InputError("give CONFIG, or --trace FILE")
    file = RunDirectory(Path(config.output.dir)).operations
    if not file.is_file():
        raise InputError(
            f"{file}: no such trace; record it with 'hpcbal profile {args.config} --operations', "
            "or give --trace FILE"
        )
    return (file,)


def _seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed: got {seed}, allowed: a whole number from 0 to 2**32 - 1")
    return seed


def _parsing(given: tuple[float, float] | Path | None) -> ParsingOverhead:
    if given is None:
        return NO_PARSING
    if isinstance(given, tuple):
        return ParsingOverhead(*given)
    try:
        record = json.loads(given.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{given}: cannot read what parsing costs: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{given}: this is no JSON file") from error
    keys = {"s_per_byte", "s_per_transfer"}
    if not isinstance(record, dict) or not keys <= record.keys():
        raise InputError(f"{given}: must have the keys {' and '.join(sorted(keys))}")
    values = [record[key] for key in ("s_per_byte", "s_per_transfer")]
    if not all(type(value) in (int, float) and 0.0 <= value < math.inf for value in values):
        raise InputError(f"{given}: s_per_byte and s_per_transfer must be numbers, 0 or more")
    return ParsingOverhead(*map(float, values))
