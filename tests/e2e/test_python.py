"""Runs from Python: the example of docs/python.md, stops, and ensembles in one process."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")

SECTION = '    "schedule": {'
WIDTHS = "(8, 32, 64)"
MEAN = """\
with run.ensemble() as mean:
    of_all = mean.predict("test")
"""
CHECKS = """\
import json, math, sys
import numpy as np
from hpcbal.config import load_ensemble
from hpcbal.data import open_source

source = open_source(load_ensemble("runs/digits/config.yaml"))
labels = np.array([int(source.read(int(each))[1]) for each in source.test_ids])
found = {}
for name, predictions in (("mean of all", of_all), ("greedy selection", on_test)):
    rows = np.arange(len(labels))
    accuracy = float((predictions.argmax(axis=1) == labels).mean())
    nll = float(-np.log(predictions[rows, labels]).mean())
    found[name] = {"accuracy": accuracy, "nll": nll}
wanted = {each["name"]: each["scores"] for each in scores["ensembles"]}
shares = {each["name"]: each["share"] for each in scores["dnns"]}
facts = {
    "found": found,
    "wanted": wanted,
    "shares": shares,
    "members": ensemble.members,
    "shape": probabilities.shape,
    "sums": [float(each) for each in probabilities.sum(axis=1)],
    "epochs": [row["epochs"] for row in more.results()],
    "code": code,
    "page": page.name,
    "mpi": "mpi4py" in sys.modules,
}
print("FACTS", json.dumps(facts))
"""


def code_of(title: str) -> list[str]:
    """The code of a section of the page."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(600)
def test_the_example_of_the_page_runs(lab):
    """The script trains; then the cells run in one process that has no file, as in a notebook."""
    (script,) = code_of("A script")
    assert (script.count(SECTION), script.count(WIDTHS)) == (1, 1)
    # Two of the three networks, on one slot, whatever cores there are.
    small = script.replace(SECTION, f'    "slots": {{"per_node": 1}},\n{SECTION}').replace(WIDTHS, "(8, 32)")
    done = lab.python("train.py", small).wait(timeout_s=300)
    assert done.code == 0, done
    assert "'name': 'width-8', 'state': 'done'" in done.out
    assert "2 done" in done.out

    cells = code_of("In a notebook")
    assert len(cells) == 5
    cells.insert(3, MEAN)  # before more is trained
    start = "import sys; exec(compile(open('cells.txt').read(), '<cell>', 'exec'))"
    (lab.folder / "cells.txt").write_text("\n".join([*cells, CHECKS]), encoding="utf-8")
    done = lab.python_code(start).wait(timeout_s=400)
    assert done.code == 0, done
    facts = json.loads(done.out.rpartition("FACTS ")[2])
    for name, scores in facts["found"].items():
        assert scores["accuracy"] == pytest.approx(facts["wanted"][name]["accuracy"], abs=1e-12)
        assert scores["nll"] == pytest.approx(facts["wanted"][name]["nll"], rel=1e-5)
    assert facts["members"] == pytest.approx(facts["shares"])
    assert facts["shape"] == [10, 10]
    assert facts["sums"] == pytest.approx([1.0] * 10, abs=1e-5)
    assert (facts["epochs"], facts["code"], facts["page"]) == ([5, 5], 0, "report.html")
    assert not facts["mpi"]
    assert (lab.folder / "best.keras").is_file()
    for text in ("greedy selection (", "ranks: "):
        assert text in done.out


ONE_SLOT = {"slots": {"per_node": 1}}
"""The fewest ranks, for what does not depend on their number."""

LONG = """\
import sys, time
import hpcbal

if __name__ == "__main__":
    run = hpcbal.run("run.yaml", set={"defaults.stop.max_epochs": 3, "dnns.a.stop.max_epochs": 400})
    while run.status()["phase"] != "training":
        time.sleep(0.02)
    print("training", flush=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["raises", "is killed", "is interrupted"])
def test_a_run_does_not_outlive_its_script_and_loses_nothing(lab, how):
    lab.configure(**ONE_SLOT)
    ends = {
        "raises": "    raise RuntimeError('a fault in the script')",
        "is killed": "    time.sleep(600)",
        "is interrupted": "    run.wait()",
    }
    running = lab.python("script.py", LONG + ends[how])
    running.until(lambda: "training" in (lab.folder / ".stdout").read_text(), "training")
    if how == "is killed":
        os.kill(running.process.pid, signal.SIGKILL)
    if how == "is interrupted":
        os.kill(running.process.pid, signal.SIGINT)
    done = running.wait(ranks_s=60.0)
    wanted = {"raises": 1, "is killed": -signal.SIGKILL, "is interrupted": -signal.SIGINT}
    assert done.code == wanted[how], done
    status = lab.status()
    assert (status["phase"], status["exit_code"]) == ("suspended", 75)
    if how == "raises":
        assert "the script ends before 'hpcbal run', which now stops cleanly" in done.err
    if how == "is interrupted":
        assert "KeyboardInterrupt" in done.err
        assert "stopping cleanly: writing checkpoints" in done.out


@pytest.mark.timeout(300)
def test_a_run_of_the_command_line_is_watched_stopped_continued_and_killed_from_python(lab):
    lab.configure(**ONE_SLOT)
    long = ("dnns.a.stop.max_epochs=400", "defaults.stop.max_epochs=3")
    running = lab.start("run", "run.yaml", *(word for each in long for word in ("--set", each)))
    running.until(lambda: (lab.out / "status.json").exists(), "status")
    text = """
import time
import yaml
import hpcbal

if __name__ == "__main__":
    run = hpcbal.load("out")
    while run.status()["phase"] != "training":
        time.sleep(0.02)
    codes = [run.stop()]
    with open("run.yaml") as file:
        values = yaml.safe_load(file)  # the same as a dict
    values["dnns"][0]["stop"]["max_epochs"] = 400
    again = hpcbal.run(values, resume=True)
    try:
        again.wait(0.0, show=False)
    except TimeoutError as error:
        print(error)
    while again.status()["phase"] != "training":
        time.sleep(0.02)
    codes += [again.stop(), again.wait(show=False), hpcbal.load("out").wait(check=False)]
    print(again.status()["phase"], again.status()["outcome"])
    again = hpcbal.run(values, resume=True)
    while again.status()["phase"] != "training":
        time.sleep(0.02)
    codes.append(again.stop(kill=True))
    with open("codes.json", "w") as file:
        json.dump(codes, file)
"""
    done = lab.python("script.py", f"import json{text}").wait()
    assert done.code == 0, done
    assert "out: 'hpcbal run' still runs\n" in done.out
    assert "suspended suspended\n" in done.out
    *stopped, killed = json.loads((lab.folder / "codes.json").read_text())
    assert (stopped, running.process.wait()) == ([75, 75, 75, 75], 75)
    assert killed != 0
    assert len(lab.events("run-started")) == 3


@pytest.mark.timeout(300)
def test_errors_of_ranks_are_exceptions_with_fields(lab):
    lab.configure(lambda config: config["dnns"][1].update(args={"trouble": "raise"}), **ONE_SLOT)
    text = """
import hpcbal

if __name__ == "__main__":
    for changes in ({}, {"data.args": {"num_samples": 120, "broken": 120}}):
        try:
            hpcbal.run("run.yaml", output=f"out{len(changes)}", set=changes).wait(show=False)
        except hpcbal.RunFailed as error:
            print(type(error).__name__, error.code, error.directory, len(error.output) > 100)
    try:
        hpcbal.load("out0").evaluate()
    except hpcbal.RunRefused as error:
        print("emulated networks have no outputs" in error.output)
    try:
        hpcbal.load("out0").ensemble()
    except hpcbal.InputError as error:
        print("emulated networks have no outputs" in str(error))
"""
    done = lab.python("script.py", text).wait()
    assert done.code == 0, done
    assert done.out.splitlines() == [
        "RunFailed 3 out0 True",
        "RunRefused 2 out1 True",
        "True",
        "True",
    ]


@pytest.mark.timeout(300)
def test_a_script_without_a_guard_is_refused_in_the_ranks(lab):
    text = """
import hpcbal
from toys import toy

def net(input_shape, num_classes):
    return toy(input_shape, num_classes)

VALUES = {
    "data": {"dataset": "toys:points"},
    "defaults": {"batch_size": 16, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    "dnns": [{"name": "a", "model": net, "stop": {"max_epochs": 1}}],
    "backend": {"name": "emulated", "rates": {"a": {1: 400}}},
    "slots": {"per_node": 1},
}
try:
    hpcbal.run(VALUES, output="out").wait(show=False)
except hpcbal.RunFailed as error:
    print("put its calls under if __name__" in error.output or error.output)
"""
    done = lab.python("unguarded.py", text).wait()
    assert done.out == "True\n", done
