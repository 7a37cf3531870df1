"""How a batch job has ended, and whether it comes back."""

from __future__ import annotations

import pytest

from hpcbal.cluster.job_end import end_of_start, log_before, reason_not_to_start, starts_of, what_follows


@pytest.mark.parametrize(
    ("noted", "status", "code", "is_lost", "says"),
    [
        ("undecided\n3\n", 139, 3, False, ""),
        ("undecided\nprogress\n75\n", 75, 75, False, ""),
        ("undecided\n", 75, 1, False, "ended itself with code 75"),
        ("", 75, 75, False, ""),  # rank 0 could not write the file
        ("", 0, 1, False, "the launcher has ended with 0, but"),
        ("undecided\n", 0, 1, True, "the launcher has ended with 0, but"),
        ("undecided\nprogress\n", 137, 1, True, "the launcher has ended with 137, but"),
        ("", 137, 1, True, "the launcher has ended with 137, but"),
        ("undecided\nprogress\nlost: rank 2 died\n1\n", 1, 1, True, "rank 2 died"),
        ("undecided\n2\nlost: rank 2 died\n", 14, 2, False, ""),  # a rank that ended the job took it along
        ("undecided\n", 70, 70, False, ""),
        ("undecided\n", 2, 2, False, ""),
        ("", 14, 14, False, ""),
    ],
)
def test_what_the_run_has_noted_outweighs_the_code_of_the_launcher(
    noted: str, status: int, code: int, is_lost: bool, says: str
) -> None:
    end = end_of_start(noted.splitlines(), status)
    assert (end.code, end.is_lost) == (code, is_lost)
    assert says in end.sentence
    assert bool(says) == bool(end.sentence)


OPEN_MPI = """
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-n1-81@0,0] on node n1
  Remote daemon: [prterun-n1-81@0,1] on node n2

This is usually due to either a failure of the TCP network
"""
BOTH = "undecided\nnodes: n1 n2\n"


@pytest.mark.parametrize(
    ("noted", "status", "log", "says"),
    [
        (BOTH, 0, OPEN_MPI, "has recorded no end: node n2 was lost, as the launcher says above"),
        (BOTH, 137, "srun: error: Node failure on n2\n" * 2, "end: node n2 was lost, as the launcher says"),
        (BOTH, 0, "", "a node (of n1, n2), a rank or the launcher was lost; see its messages above"),
        (BOTH + "lost: rank 1 died\nseen: n1\n", 14, "", "rank 1 died; perhaps node n2 was lost: no rank "),
        (BOTH + "lost: rank 1 died\nseen: n1\n", 14, OPEN_MPI, "rank 1 died; node n2 was lost, as the "),
        (BOTH + "seen: n1\n", 0, "", "end: perhaps node n2 was lost: no rank there has noted this end"),
    ],
)
def test_a_node_that_was_lost_is_named(noted: str, status: int, log: str, says: str) -> None:
    end = end_of_start(noted.splitlines(), status, log)
    assert (end.code, end.is_lost) == (1, True)
    assert says in end.sentence


@pytest.mark.parametrize(
    "noted", ["seen: n1\n", BOTH + "seen: n1\nseen: n2\n"], ids=["one node", "both live"]
)
def test_where_all_nodes_live_none_is_named(noted: str) -> None:
    assert end_of_start(f"lost: rank 1 died\n{noted}".splitlines(), 14).sentence == "rank 1 died"


def test_only_what_the_log_has_of_the_last_start_counts() -> None:
    assert log_before("start\nundecided\nlog: 300\nstart\n75\nlog: 900\nstart\n") == 900
    assert log_before("start\nundecided\n") == 0


@pytest.mark.parametrize(
    ("story", "starts"),
    [
        ("", [[]]),
        ("start\n", [[]]),
        ("undecided\n75\n", [["undecided", "75"]]),
        ("start\nundecided\nprogress\nstart\nstart\n75", [["undecided", "progress"], [], ["75"]]),
    ],
)
def test_a_story_has_the_lines_of_each_start(story: str, starts: list[list[str]]) -> None:
    assert starts_of(story) == starts


LOST_NODE = "start\nundecided\nprogress\n"  # Slurm requeues the job itself, and no script sees its end
STOPPED = "start\nundecided\nprogress\n75\n"
STUCK = "start\nundecided\n75\n"
RANK_LOST = "start\nundecided\nprogress\nlost: rank 2 died\n"


@pytest.mark.parametrize(
    ("story", "status", "restarts", "code", "comes_back", "says"),
    [
        ("start\nundecided\nprogress\n0\n", 0, 0, 0, False, ""),
        ("start\nundecided\nprogress\n3\n", 3, 0, 3, False, ""),
        (STOPPED, 75, 0, 75, True, ""),
        (STUCK, 75, 0, 75, True, ""),
        (STOPPED + STUCK, 75, 1, 75, True, ""),
        (STUCK + STOPPED, 75, 1, 75, True, ""),
        (STUCK + STUCK, 75, 1, 75, False, "two starts in a row have got no further"),
        (STOPPED + STUCK + "start\nlost: rank 2 died\n", 14, 2, 1, False, "two starts in a row"),
        ("start\nstart\n75\n", 75, 1, 75, False, "two starts in a row"),  # the first lost its node at once
        (RANK_LOST, 14, 0, 1, True, "rank 2 died"),
        ("start\nundecided\nprogress\n", 0, 0, 1, True, "has recorded no end"),
        (STOPPED * 3, 75, 2, 75, True, ""),
        (STOPPED * 4, 75, 3, 75, False, "started again 3 times, 3 are allowed"),
        (LOST_NODE * 3 + STOPPED, 75, 3, 75, False, "started again 3 times"),
        (LOST_NODE * 5 + STOPPED, 75, 5, 75, False, "started again 5 times, 3 are allowed"),
        (STOPPED, 75, 3, 75, False, "started again 3 times"),  # the story is new, the batch system knows
        ("start\nundecided\n", 75, 0, 1, False, "ended itself with code 75"),
    ],
)
def test_a_job_comes_back_while_it_gets_further_and_may(
    story: str, status: int, restarts: int, code: int, comes_back: bool, says: str
) -> None:
    follows = what_follows(story, status, 3, num_restarts=restarts)
    assert (follows.code, follows.comes_back) == (code, comes_back)
    assert says in " ".join(follows.sentences)
    assert bool(says) == bool(follows.sentences)


def test_without_a_limit_a_job_comes_back_as_often_as_it_gets_further() -> None:
    assert what_follows(STOPPED * 1000, 75, num_restarts=999).comes_back
    (said,) = what_follows(STOPPED, 75, 0).sentences
    assert said.startswith("the job may not be started again (no --until-done")
    assert reason_not_to_start(LOST_NODE, 0) == said


@pytest.mark.parametrize(
    ("story", "status", "code", "says"),
    [
        (STOPPED, 75, 75, "cancelled by hpcbal cancel"),
        (RANK_LOST, 14, 1, "cancelled by hpcbal cancel"),
        ("start\nundecided\nprogress\n0\n", 0, 0, ""),  # it was done before the signal came
    ],
)
def test_a_job_that_was_cancelled_does_not_come_back(story: str, status: int, code: int, says: str) -> None:
    follows = what_follows(story, status, 3, is_cancelled=True)
    assert (follows.code, follows.comes_back) == (code, False)
    assert follows.sentences[-1:] == () if not says else says in follows.sentences[-1]


@pytest.mark.parametrize(
    ("story", "is_cancelled", "says"),
    [
        ("", False, ""),
        ("", True, "cancelled by hpcbal cancel"),
        (LOST_NODE, False, ""),
        (LOST_NODE, True, "cancelled by hpcbal cancel"),
        (LOST_NODE * 3, False, ""),
        (LOST_NODE * 4, False, "started again 3 times, 3 are allowed"),
        (LOST_NODE + "start\n", False, ""),
        (LOST_NODE + "start\n" * 2, False, "two starts in a row have got no further"),
    ],
)
def test_a_start_that_the_batch_system_repeats_counts(story: str, is_cancelled: bool, says: str) -> None:
    reason = reason_not_to_start(story, 3, is_cancelled=is_cancelled)
    assert says in reason
    assert bool(says) == bool(reason)
    assert not reason_not_to_start(LOST_NODE * 100)
