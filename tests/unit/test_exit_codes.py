"""Which code a command ends with."""

from __future__ import annotations

import pytest

from hpcbal.errors import ClusterError, ExitCode, InputError
from hpcbal.exit_codes import CODE_OF_OUTCOME, LAST_OUTCOMES, code_of_end, code_of_error, end_of_job


def test_an_error_outweighs_the_outcome_of_a_start() -> None:
    assert code_of_end("suspended") == ExitCode.RUN_AGAIN
    assert code_of_end("suspended", InputError("x")) == ExitCode.WRONG_INPUT
    assert {code_of_end(outcome) for outcome in LAST_OUTCOMES} == {ExitCode.DONE, ExitCode.FAILED_DNNS}
    assert set(LAST_OUTCOMES) < set(CODE_OF_OUTCOME)


def test_an_error_that_is_not_ours_is_a_fault_in_hpcbal() -> None:
    assert code_of_error(ClusterError("x")) == ClusterError.exit_code
    assert code_of_error(ValueError("x")) == ExitCode.INTERNAL_ERROR


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
    end = end_of_job(noted, status)
    assert (end.code, end.is_lost) == (code, is_lost)
    assert says in end.sentence
    assert bool(says) == bool(end.sentence)
