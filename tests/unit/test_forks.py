"""A forked copy of a rank ends when user code returns from it; the rank and other processes go on."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """\
import os
from hpcbal.processes import leave_if_forked, remember_rank
leave_if_forked("nobody")
remember_rank()
leave_if_forked("nobody")
child = os.fork()
leave_if_forked("the model of a")
print("the rank continues", os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_only_the_rank_itself_goes_on_after_a_fork() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.stdout == "the rank continues 0\n"
    assert done.stderr.startswith("hpcbal: warning: the model of a has forked; the new process (pid ")
    assert done.stderr.count("\n") == 1


IN_A_DATASET = """\
import os, sys, types
from hpcbal.data import LabelSpec, SampleSpec
from hpcbal.data.held_out import open_dataset
from hpcbal.processes import remember_rank

class Points:
    num_classes, sample_spec, label_spec = 2, SampleSpec.of((3,), "float32"), LabelSpec()
    def __init__(self):
        os.fork()
    def __len__(self):
        return 5
    def read(self, sample_id):
        raise AssertionError
    def describe(self, sample_id):
        return ""

sys.modules["theirs"] = types.ModuleType("theirs")
sys.modules["theirs"].Points = Points
remember_rank()
open_dataset("theirs:Points", {})
print("the rank continues", os.waitstatus_to_exitcode(os.wait()[1]))
"""
IN_A_MODEL = """\
import os
from types import SimpleNamespace
from hpcbal.processes import remember_rank
from hpcbal.runtime.start.trainer import ModelCheck

remember_rank()
dnn = SimpleNamespace(name="a", model="m:f", init=None, freeze=())
ModelCheck(lambda dnn: os.fork(), 0, 1, lambda value: [value], "log").run([dnn], {"a": False})
print("the rank continues", os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("program", [IN_A_DATASET, IN_A_MODEL], ids=["dataset", "model"])
def test_a_copy_that_is_made_before_training_ends_too(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "the rank continues 0\n", done.stderr
    assert " has forked; the new process (pid " in done.stderr
