"""`hpcbal simulate` for an ensemble, of a file or of a paper: makespans under each schedule."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcbal.cli.options import Answer
from hpcbal.cli.simulate import DEFAULT_SEEDS
from hpcbal.cli.simulating.output import make_directory, write_output
from hpcbal.cli.simulating.text import render_rows, rows_to_dict
from hpcbal.config import EnsembleConfig
from hpcbal.config.submission import with_expected
from hpcbal.control.paradigms import AUTO, PARADIGM_NAMES
from hpcbal.errors import InputError
from hpcbal.planning.scenario import scenario_of_config
from hpcbal.processes import say
from hpcbal.simulator.comparison import compare
from hpcbal.simulator.costs import COST_NAMES
from hpcbal.simulator.preset import load_preset
from hpcbal.simulator.scenario import Scenario


def answer(args: argparse.Namespace, config: EnsembleConfig | None, warn: Callable[[str], None]) -> Answer:
    """Simulate; without a configuration, the preset."""
    if config is not None:
        config, notes = with_expected(config)
        for note in notes:
            warn(note)
    scenario = _with_costs(_scenario(args, config), args.costs)
    paradigms = args.paradigm or [scenario.settings.paradigm]
    unknown = [name for name in paradigms if name not in (*PARADIGM_NAMES, AUTO, "all")]
    if unknown:
        allowed = ", ".join((*PARADIGM_NAMES, AUTO, "all"))
        raise InputError(f"--paradigm: got {', '.join(map(repr, unknown))}, allowed: {allowed}")
    if "all" in paradigms:
        paradigms = [*(name for name in paradigms if name == AUTO), *PARADIGM_NAMES]
    if args.output is not None:
        make_directory(args.output)  # before the long simulation
    num_seeds = args.seeds or DEFAULT_SEEDS
    rows = compare(scenario, args.slots or scenario.slots, paradigms, range(num_seeds))
    if args.output is not None:
        files = write_output(args.output, scenario, rows, num_seeds)
        say(f"hpcbal: wrote {len(files)} files to {args.output}")
    return Answer(rows_to_dict(scenario, rows, num_seeds), lambda: render_rows(scenario, rows, num_seeds))


def _scenario(args: argparse.Namespace, config: EnsembleConfig | None) -> Scenario:
    if args.preset is None:
        assert config is not None
        return scenario_of_config(
            config,
            args.config,
            profile=args.profile,
            slots_per_node=args.slots_per_node,
            num_samples=args.samples,
            epochs=args.epochs,
            rate_deviation=args.rate_deviation,
            kept_per_added_node=args.kept_per_node,
            hit_rate=args.hit_rate,
        )
    given = {
        "--profile": args.profile is not None,
        "--slots-per-node": args.slots_per_node is not None,
        "--samples": args.samples is not None,
        "--epochs": args.epochs != 1.0,
        "--rate-deviation": args.rate_deviation != 0.0,
        "--kept-per-node": args.kept_per_node != 1.0,
        "--hit-rate": args.hit_rate is not None,
    }
    wrong = [option for option, is_given in given.items() if is_given]
    if wrong:
        raise InputError(f"{', '.join(wrong)}: allowed only with CONFIG; a preset has its own values")
    return load_preset(args.preset, args.overrides)


def _with_costs(scenario: Scenario, given: list[tuple[str, float]]) -> Scenario:
    changed: dict[str, Any] = dict(given)
    for name in changed:
        if name not in COST_NAMES:
            raise InputError(f"--cost: got {name!r}, allowed: {', '.join(COST_NAMES)}")
    if changed.keys() & {"build_s", "load_s"}:
        changed["start_s"] = {}  # what was measured per DNN
    return replace(scenario, costs=replace(scenario.costs, **changed))
