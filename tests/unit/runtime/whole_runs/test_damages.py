"""A short part of bench/soak_damage.py: damage files of a stopped run, and start the same command again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soak_damage

from hpcbal.telemetry.claim.run_lock import RunLock


def test_damaged_runs_end_right_or_are_refused_in_one_sentence(
    in_process: Any, hooks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RunLock.__init__.__kwdefaults__, "stale_s", 0.1)
    monkeypatch.chdir(tmp_path)
    with soak_damage.listening() as heard:
        lab = soak_damage.make_lab(tmp_path, in_process, hooks)
    assert not heard.tracebacks
    failed = []
    for seed, pattern in enumerate(soak_damage.FILES):
        what, found = lab.try_damage(pattern, seed)
        if not found.survived:
            failed.append(f"{what}\n{found.kind}: {found.detail}")
    soak_damage.remove_tree(in_process.out)
    assert not failed, "\n".join(failed)


def test_a_weight_that_differs_without_a_word_is_no_survival(tmp_path: Path) -> None:
    """The judge itself: it must not call everything survived."""
    import numpy as np

    root = tmp_path / "out"
    (root / "dnns").mkdir(parents=True)
    (tmp_path / ".run").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_bytes(soak_damage.FOREIGN)
    history = [(1, 0, {})]
    calm = {name: (history, {"w": np.zeros(2)}) for name in soak_damage.EPOCHS}
    other = {**calm, "b": (history, {"w": np.array([0.0, 1e-3])})}

    def kind(start: Any, found: Any) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(soak_damage, "outcome_of", lambda root: found)
            return str(soak_damage.judge(start, root, root / "ledger.jsonl", calm).kind)

    def warn() -> int:
        print("warning: ledger.jsonl: a line is lost")
        return 0

    def stumble() -> int:
        raise KeyError("seq")

    def refuse() -> int:
        raise soak_damage.HpcbalError("something is wrong")

    def repeat() -> int:
        return warn() + warn()

    assert kind(lambda: 0, calm) == "right"
    assert kind(lambda: 0, other) == "wrong without a word"
    assert kind(warn, other) == "lossy"
    assert kind(repeat, other) == "repeated"
    assert kind(warn, {**calm, "b": None}) == "wrong, but reported"
    assert kind(stumble, calm) == "traceback"
    assert kind(lambda: 3, calm) == "exit code 3"
    assert kind(refuse, calm) == "refused without the name"
    (tmp_path / "foreign" / "file").write_bytes(b"overwritten")
    assert kind(lambda: 0, calm) == "foreign file changed"
