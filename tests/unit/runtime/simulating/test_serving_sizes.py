"""Sizes of apps' first pushes in the simulator: as many bytes as their blocks push."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.config import JobsConfig, load_config
from hpcbal.errors import InputError, UserCodeError
from hpcbal.paramserver.api.columns import Ragged
from hpcbal.runtime.jobs.loading import LoadedJob, first_cut, load_job
from hpcbal.runtime.simulating.sizes import ID_BYTES, serving_job
from hpcbal.simulator.paramserver.job import ServingJob

APPS = "hpcbal.paramserver.apps"
BLOCKS = 4


def sizes_of(tmp_path: Path, app: str, args: dict[str, Any], dataset: str, data: dict[str, Any]) -> Any:
    """The loaded job, and what the simulator is told of it."""
    job = {
        "name": "job",
        "app": f"{APPS}:{app}",
        "args": args,
        "data": {"dataset": f"{APPS}:{dataset}", "args": data},
        "mini_batch": 20,
        "blocks": {"data": BLOCKS, "parameters": 4},
        "stop": {"max_epochs": 3},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"kind": "jobs", "jobs": [job]}), encoding="utf-8")
    config = load_config(path)
    assert isinstance(config, JobsConfig)
    loaded = load_job(config.jobs[0])
    return loaded, serving_job(config.jobs[0], 0, loaded, first_cut(config.jobs[0], loaded, 2), None)


def test_variables_in_the_arguments_of_a_jobs_data_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As paths in node-local scratch."""
    data = {"dataset": "${WHERE}.data:digits", "num_samples": 40}
    with pytest.raises(InputError, match=r"data\.args\.dataset: got .* WHERE is not set here; set it"):
        sizes_of(tmp_path, "MLR", {}, "labelled", data)
    monkeypatch.setenv("WHERE", "hpcbal")
    assert sizes_of(tmp_path, "MLR", {}, "labelled", data)[0].num_samples == 40


def distinct(loaded: LoadedJob, column: str) -> list[int]:
    """Distinct ids of each data block."""
    size = loaded.num_samples // BLOCKS
    found = []
    for block in range(BLOCKS):
        values = loaded.source.read(np.arange(block * size, (block + 1) * size))[column]
        assert isinstance(values, Ragged)
        found.append(len(np.unique(values.values)))
    return found


def test_rows_of_a_first_push_are_those_that_a_block_names(tmp_path: Path) -> None:
    data = {"num_users": 80, "num_items": 50, "mean_ratings": 6}
    for access in ("dense", "sparse"):
        loaded, job = sizes_of(tmp_path, "NMF", {"rank": 3, "access": access}, "generated_ratings", data)
        rows = distinct(loaded, "items")
        assert len(set(rows)) > 1  # blocks differ
        assert job.first_push == {"items": [each * (4 * 8 + ID_BYTES) for each in rows]}
        ratings = loaded.source.read(np.arange(loaded.num_samples))["items"]
        assert isinstance(ratings, Ragged)
        times = len(np.unique(ratings.values)) / np.mean(rows)
        assert job.first_growth == pytest.approx(math.log(times) / math.log(BLOCKS))


def test_a_dense_table_is_pushed_whole_without_numbers_of_rows(tmp_path: Path) -> None:
    data = {"num_documents": 80, "num_words": 60, "mean_words": 12}
    loaded, job = sizes_of(tmp_path, "LDA", {"num_topics": 5}, "generated_documents", data)
    rows = distinct(loaded, "words")
    assert job.first_push["word_topics"] == [each * (5 * 4 + ID_BYTES) for each in rows]
    assert job.first_push["topic_totals"] == [5 * 8] * BLOCKS


def test_an_app_without_first_updates_pushes_nothing(tmp_path: Path) -> None:
    data = {"num_features": 80, "num_observations": 40, "num_nonzero": 3}
    _, job = sizes_of(tmp_path, "Lasso", {"l1": 1e-3}, "generated_regression", data)
    assert isinstance(job, ServingJob)
    assert job.first_push == {}
    assert job.first_growth is None


def test_first_updates_that_do_not_fit_the_tables_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{APPS}.nmf.NMF.initial_updates", lambda app, batch: {"users": np.zeros((1, 1))})
    data = {"num_users": 80, "num_items": 50, "mean_ratings": 6}
    with pytest.raises(UserCodeError, match="NMF: updates: got table 'users', allowed: items"):
        sizes_of(tmp_path, "NMF", {"rank": 3}, "generated_ratings", data)
