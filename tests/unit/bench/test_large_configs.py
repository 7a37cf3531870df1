"""The bench of large configurations: its files are what they claim to be, at any size."""

from __future__ import annotations

from pathlib import Path

import bench_large_configs
import pytest

from hpcbal.config import load_config
from hpcbal.errors import MOST_PROBLEMS, ConfigError


def test_its_files_have_the_number_of_dnns_and_of_wrong_keys(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    found = {}
    for case in bench_large_configs.cases(divide=100):
        path.write_text(case.text, encoding="utf-8")
        if case.exit_code == 2:
            with pytest.raises(ConfigError, match="key0: unknown key") as caught:
                load_config(path)
            assert (len(caught.value.problems), caught.value.has_more) == (MOST_PROBLEMS, True)
        else:
            found[case.key] = len(load_config(path, check_imports=True).dnns)
    assert found == {"validate_5000_s": 50, "sweep_100k_s": 1000, "plan_5000_s": 50, "simulate_1000_s": 10}
