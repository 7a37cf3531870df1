"""Forecasts of asynchronous training against reality, and how long they take ([ASGD] Sec. 4).

    python bench/bench_forecast.py --json out.json
    python bench/bench_forecast.py --only speed

Each part is a module of support/ with a function `measure` that returns figures by key, and a table `BESIDE`
of what stands beside them: the paper's figure and the limit.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.provenance import provenance

PARTS: dict[str, str] = {
    "engine": "support.forecast_engine",
    "order": "support.forecast_order",
    "speed": "support.forecast_speed",
    "streams": "support.forecast_streams",
    "tensorflow": "support.forecast_tensorflow",
}
"""Part -> module."""


def table(figures: dict[str, Any], beside: dict[str, tuple[str, str]]) -> list[str]:
    """The figures beside those of the paper, and the limits."""
    rows = [("", "ours", "paper", "limit")]
    single = {key: value for key, value in figures.items() if isinstance(value, float)}
    rows += [(key, f"{value:.4g}", *beside.get(key, ("", ""))) for key, value in single.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=tuple(PARTS), help="measure only this part")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    for part, module_name in PARTS.items():
        if args.only not in (None, part):
            continue
        module = importlib.import_module(module_name)
        figures = module.measure()
        print(f"\n{part}\n" + "\n".join(table(figures, module.BESIDE)), flush=True)
        found |= figures
    if args.json:
        args.json.write_text(json.dumps(found | provenance(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
