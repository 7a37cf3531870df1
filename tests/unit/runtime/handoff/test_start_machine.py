"""The actions of `hpcbal run` on its ranks, and the meaning of their ends, case by case."""

from __future__ import annotations

import math
import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.leftovers import EVALUATING, TRAINING
from hpcbal.runtime.handoff.start_file import StartFacts
from hpcbal.runtime.handoff.start_machine import (
    ANSWER_S,
    ENDED_EARLY,
    FORCE_S,
    QUIET_S,
    Action,
    StartMachine,
)

FRESH = StartMachine()
DIED = "rank 2 died"
RUNNING = StartFacts(starter_pid=1, is_ready=True, is_watched=True)
REPORTED = replace(RUNNING, last_words=DIED)
REPORT, PASS_ON, KILL = Action.REPORT_LAST_WORDS, Action.PASS_ON_STOP, Action.KILL


@pytest.mark.parametrize(
    ("facts", "looks", "actions"),
    [
        (RUNNING, ["", ""], [(), ()]),
        (RUNNING, ["stop", "stop"], [(PASS_ON,), ()]),
        (RUNNING, ["stop", "stop kill", "stop"], [(PASS_ON,), (KILL,), ()]),
        (RUNNING, ["stop kill", "stop kill"], [(PASS_ON, KILL), (KILL,)]),
        (
            StartFacts(),
            ["stop", "stop kill", "ready"],
            [(), (KILL,), ()],
        ),  # a signal would kill ranks that are not ready
        (replace(RUNNING, exit_code=0), ["stop"], [()]),  # there is nothing to stop any more
        (REPORTED, ["", ""], [(REPORT,), ()]),
        (REPORTED, ["stop kill", ""], [(REPORT, PASS_ON, KILL), ()]),
    ],
)
def test_each_wish_is_passed_on_once_when_the_ranks_can_answer(
    facts: StartFacts, looks: list[str], actions: list[tuple[Action, ...]]
):
    machine, done = FRESH, []
    for look in looks:
        known = replace(facts, is_ready=True) if look == "ready" else facts
        machine, now = machine.look(known, stop=bool(look), kill="kill" in look)
        done.append(now)
    assert done == actions


@pytest.mark.parametrize("known", [StartFacts(), RUNNING], ids=["starting", "running"])
def test_ranks_that_do_not_answer_a_stop_are_killed_and_the_run_can_go_on(known: StartFacts):
    machine, _ = FRESH.look(known, stop=True, kill=False, stop_s=ANSWER_S - 1.0)
    machine, actions = machine.look(known, stop=True, kill=False, stop_s=ANSWER_S + 1.0)
    assert actions == (Action.GIVE_UP,)
    assert "did not answer for 6 s" in machine.sentence_of(Action.GIVE_UP, known)
    assert machine.look(known, stop=True, kill=False, stop_s=ANSWER_S + 2.0)[1] == ()
    assert machine.end(143, known, stop=True).code == ExitCode.RUN_AGAIN


def test_ranks_that_have_answered_may_finish_their_step():
    machine, _ = FRESH.look(RUNNING, stop=True, kill=False)
    assert machine.look(STOPPING, stop=True, kill=False, stop_s=3600.0)[1] == ()
    assert machine.look(facts(75), stop=True, kill=False, stop_s=3600.0)[1] == ()


@pytest.mark.parametrize("answered", ["stopping", "ended"])
def test_a_rank_that_stays_suspended_does_not_hold_the_end(answered: str):
    known, code = (STOPPING, ExitCode.RUN_AGAIN) if answered == "stopping" else (facts(0), ExitCode.DONE)
    machine, _ = FRESH.look(RUNNING, stop=True, kill=False)
    assert machine.look(known, stop=True, kill=False, stop_s=60.0, suspended_s=ANSWER_S - 1.0)[1] == ()
    machine, actions = machine.look(known, stop=True, kill=False, stop_s=60.0, suspended_s=ANSWER_S + 1.0)
    assert actions == (Action.GIVE_UP,)
    assert "a rank was suspended for 6 s; killing" in machine.sentence_of(Action.GIVE_UP, known)
    assert machine.end(143, known, stop=True).code == code


def test_an_mpirun_that_does_not_end_is_killed_with_the_ranks():
    machine, actions = FRESH.look(RUNNING, stop=True, kill=False, stop_s=ANSWER_S + 1.0)
    assert Action.GIVE_UP in actions
    machine, actions = machine.look(RUNNING, stop=True, kill=False, stop_s=ANSWER_S + FORCE_S)
    assert actions == ()
    machine, actions = machine.look(RUNNING, stop=True, kill=False, stop_s=ANSWER_S + FORCE_S + 2.0)
    assert actions == (Action.FORCE,)
    assert machine.look(RUNNING, stop=True, kill=False, stop_s=3600.0)[1] == ()
    end = machine.end(-signal.SIGKILL, RUNNING, stop=True)
    assert (end.code, end.sentences) == (ExitCode.RUN_AGAIN, (TRAINING.killed,))


POLL_S = 0.1


@pytest.mark.parametrize("known", [StartFacts(), RUNNING], ids=["starting", "running"])
@pytest.mark.parametrize("is_killed_by", [3.0, math.inf], ids=["a patient mpirun", "a deaf mpirun"])
def test_a_stop_that_nobody_answers_ends_everything_within_ten_seconds(
    known: StartFacts, is_killed_by: float
):
    """In virtual time, in which mpirun takes so long to end ranks that it was asked to kill."""
    machine, stop_s, ends_s = FRESH, 0.0, math.inf
    while stop_s < ends_s:
        machine, actions = machine.look(known, stop=True, kill=False, stop_s=stop_s)
        if Action.GIVE_UP in actions:
            ends_s = stop_s + is_killed_by
        if Action.FORCE in actions:
            ends_s = stop_s
        stop_s += POLL_S
    assert stop_s <= 10.0 - 0.5  # to reap them
    assert machine.end(-signal.SIGKILL if machine.has_forced else 143, known, stop=True).code == 75


def test_a_long_silence_of_a_start_is_explained_once():
    machine, actions = FRESH.look(StartFacts(), stop=False, kill=False, quiet_s=QUIET_S - 1.0)
    assert actions == ()
    machine, actions = machine.look(StartFacts(), stop=False, kill=False, quiet_s=QUIET_S + 1.0)
    assert actions == (Action.EXPLAIN_SILENCE,)
    assert "printed nothing for 20 s" in machine.sentence_of(Action.EXPLAIN_SILENCE, StartFacts())
    assert machine.look(StartFacts(), stop=False, kill=False, quiet_s=QUIET_S + 2.0)[1] == ()
    assert FRESH.look(StartFacts(), stop=True, kill=False, quiet_s=QUIET_S + 1.0)[1] == ()


def test_words_of_ranks_that_people_have_killed_are_not_reported():
    machine, _ = FRESH.look(RUNNING, stop=True, kill=True)
    assert machine.look(REPORTED, stop=True, kill=False)[1] == ()
    assert machine.end(137, REPORTED).sentences == (TRAINING.killed,)


STOPPED = "the ranks have written checkpoints and stopped; run the same command again to resume"
BY_TERM = "a rank ended before it could write a checkpoint; run the same command again"
GONE = "the ranks have ended too, perhaps before they could write checkpoints; run the same command again to"
LEFT = "some ranks may still be running; they stop after their current step."
WHILE_STOPPING = "the ranks were asked to stop, but ended perhaps before they could write checkpoints"
STARTING_DEATH = "a rank was ended by SIGKILL while the run was starting (mpirun reports which)"
DEATH = "a rank was ended by SIGSEGV (mpirun reports which): killed by kill -9 or the out-of-memory killer"
KILLED = -signal.SIGKILL
STOPPING = replace(RUNNING, is_stopping=True)


def facts(code: int, before: StartFacts = RUNNING) -> StartFacts:
    """The run has decided its end."""
    return replace(before, exit_code=code)


@pytest.mark.parametrize(
    ("returncode", "known", "code", "sentences"),
    [
        # The run decides, whatever happens to a rank on its way out.
        (0, facts(0), 0, []),
        (0, facts(3), 3, []),
        (137, facts(3), 3, []),
        (0, facts(75), 75, []),  # rank 0 was heard
        (1, facts(75), 75, [STOPPED]),
        (1, facts(75, REPORTED), 75, [DIED]),
        (143, facts(3, REPORTED), 3, [DIED]),
        (KILLED, facts(75), 75, [STOPPED]),
        (KILLED, facts(0), 0, ["the run has ended with exit code 0"]),
        # A rank that aborts the job decides too, and has reported the reason.
        (70, replace(RUNNING, abort_code=70), 70, []),
        (1, replace(RUNNING, abort_code=70), 70, []),  # mpirun's code may be another rank's
        (2, StartFacts(abort_code=2), 2, []),
        (70, replace(STOPPING, abort_code=70), 70, []),
        # Nothing has been decided: the return code of a rank or of mpirun is not a decision.
        *((returned, RUNNING, 1, [TRAINING.ended_undecided]) for returned in (0, 1, 2, 3, 70, 75, 130, 213)),
        # mpirun returns 1 if a signal ends it, and other codes if it cannot start the ranks.
        *((returned, StartFacts(), 1, [ENDED_EARLY]) for returned in (0, 1, 213)),
        # A rank has reported why it aborts: what ends the others is not the cause.
        *((returned, replace(RUNNING, abort_code=2), 2, []) for returned in (137, 143, -signal.SIGTERM)),
        *((returned, REPORTED, 1, [DIED]) for returned in (1, 2, 3, 70, 75, 137, 143)),
        (75, STOPPING, 1, [WHILE_STOPPING]),
        (1, STOPPING, 1, [WHILE_STOPPING]),
        # TERM or INT came before Python could catch it: nothing is lost.
        (143, StartFacts(), 75, [BY_TERM]),
        (130, StartFacts(), 75, [BY_TERM]),
        (-signal.SIGTERM, RUNNING, 75, [BY_TERM]),
        # No rank had time to report anything.
        (137, StartFacts(is_ready=True), 1, [STARTING_DEATH]),
        (139, RUNNING, 1, [DEATH]),
        (139, STOPPING, 1, [DEATH]),
        # mpirun was killed: the ranks report each other's ends, which are not the cause.
        (KILLED, RUNNING, 1, [GONE]),
        (KILLED, REPORTED, 1, [GONE]),
        (KILLED, STOPPING, 1, [GONE]),
        # Without mpirun each rank finds itself alone, and blames the launcher.
        (KILLED, StartFacts(exit_code=2), 1, [GONE]),
        (KILLED, StartFacts(abort_code=2), 1, [GONE]),
        (KILLED, replace(RUNNING, abort_code=2), 2, [GONE]),
    ],
)
def test_what_an_end_means(returncode: int, known: StartFacts, code: int, sentences: list[str]):
    end = FRESH.end(returncode, known)
    assert end.code == code
    assert len(end.sentences) == len(sentences)
    assert all(said.startswith(text) for said, text in zip(end.sentences, sentences, strict=True))


def test_ranks_that_outlive_a_killed_mpirun_are_reported():
    (sentence,) = FRESH.end(KILLED, RUNNING, are_gone=False).sentences
    assert sentence.startswith(LEFT)


def test_a_stop_that_reaches_mpirun_too_is_a_stop():
    """A scheduler that ends a job sends TERM to all of its processes; the job may be requeued."""
    end = FRESH.end(1, RUNNING, stop=True)
    assert end.code == 75
    assert end.sentences[0].startswith(WHILE_STOPPING)


@pytest.mark.parametrize("returncode", [143, -signal.SIGTERM, 137, 1])
def test_ranks_that_people_have_killed_have_not_stopped_cleanly(returncode: int):
    end = StartMachine(has_passed_on=True, has_killed=True).end(returncode, STOPPING, stop=True)
    assert (end.code, end.sentences) == (1, (TRAINING.killed,))


def test_a_kill_that_comes_after_the_checkpoints_changes_nothing():
    end = StartMachine(has_passed_on=True, has_killed=True).end(143, facts(75, STOPPING), stop=True)
    assert (end.code, end.sentences) == (75, (STOPPED,))


def test_words_that_were_reported_are_not_reported_again():
    end = StartMachine(has_reported=True).end(143, REPORTED)
    assert (end.code, end.sentences) == (1, ()), "no clean stop that a script may start again"


@given(
    machine=st.builds(StartMachine, st.booleans(), st.booleans(), st.booleans()),
    known=st.builds(
        StartFacts,
        starter_pid=st.just(1),
        is_ready=st.booleans(),
        is_watched=st.booleans(),
        is_stopping=st.booleans(),
        last_words=st.none() | st.just(DIED),
        abort_code=st.none() | st.sampled_from([1, 2, 70]),
        exit_code=st.none() | st.sampled_from(list(map(int, ExitCode))),
    ),
    returncode=st.integers(-15, 255),
    stop=st.booleans(),
    are_gone=st.booleans(),
)
def test_only_a_decided_end_gives_its_code(
    machine: StartMachine, known: StartFacts, returncode: int, stop: bool, are_gone: bool
):
    """A script starts the same command again after 75, and takes 0 for done."""
    end = machine.end(returncode, known, stop=stop, are_gone=are_gone)
    decided = {known.exit_code, known.abort_code} - {None}
    may_be = decided or {1}
    is_early = not known.is_ready
    if known.exit_code is None and (stop or returncode in (-15, 143) or (is_early and returncode == 130)):
        may_be = may_be | {75}
    if machine.has_given_up and not decided:
        may_be = may_be | {75}
    if is_early and returncode < 0:
        may_be = may_be | {1}
    assert end.code in may_be
    assert sum("run the same command again" in text.lower() for text in end.sentences) <= 1
    assert (DIED in end.sentences) <= (known.last_words is not None and not machine.has_reported)


def test_an_evaluation_speaks_of_no_checkpoints():
    machine, _ = StartMachine(sentences=EVALUATING).look(RUNNING, stop=True, kill=False)
    said = [machine.sentence_of(action, REPORTED) for action in Action]
    said += [
        sentence
        for returncode in (-9, 1, 75, 137, 143)
        for facts_now in (StartFacts(), RUNNING, replace(RUNNING, exit_code=75))
        for stop in (False, True)
        for gone in (False, True)
        for sentence in machine.end(returncode, facts_now, stop=stop, are_gone=gone).sentences
    ]
    assert len(set(said)) > 8
    assert not [sentence for sentence in said if "checkpoint" in sentence or "resume" in sentence]
