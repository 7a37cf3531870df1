"""Which code a command ends with."""

from __future__ import annotations

from hpcbal.errors import (
    CODE_OF_OUTCOME,
    LAST_OUTCOMES,
    CheckpointError,
    ClusterError,
    ExitCode,
    InputError,
    code_of_end,
    code_of_error,
)


def test_an_error_outweighs_the_outcome_of_a_start() -> None:
    assert code_of_end("suspended") == ExitCode.RUN_AGAIN
    assert code_of_end("suspended", InputError("x")) == ExitCode.WRONG_INPUT
    assert {code_of_end(outcome) for outcome in LAST_OUTCOMES} == {ExitCode.DONE, ExitCode.FAILED_DNNS}
    assert set(LAST_OUTCOMES) < set(CODE_OF_OUTCOME)


def test_an_error_that_is_not_ours_is_a_fault_in_hpcbal() -> None:
    assert code_of_error(ClusterError("x")) == ClusterError.exit_code
    assert code_of_error(ValueError("x")) == ExitCode.INTERNAL_ERROR


def test_a_checkpoint_that_cannot_be_used_is_wrong_input() -> None:
    assert code_of_error(CheckpointError("x")) == ExitCode.WRONG_INPUT
    assert code_of_end("suspended", CheckpointError("x")) == ExitCode.WRONG_INPUT
