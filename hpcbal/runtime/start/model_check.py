"""Before anything is trained: refuse a run whose models are wrong, instead of failing its DNNs one by one.

The trainers build a few models and drop them. A new run is refused if no model can be built: one mistake in
the user's code usually affects all DNNs. It is also refused if a DNN that has not begun, and
has `init` or `freeze`, cannot be built with them. A run that resumes is refused if a model differs from its
checkpoint, so that the DNNs can go on once the old code is back. All other faults of a model fail its DNN
when it is built for training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcbal.config import DnnConfig
from hpcbal.errors import InputError, UserCodeError
from hpcbal.processes import leave_if_forked
from hpcbal.training.groups import detail_of

log = logging.getLogger(__name__)

Check = Callable[[DnnConfig], None]
"""Builds the model of a DNN, and compares it with the DNN's checkpoint if there is one."""


class ModelCheck:
    """This trainer's part in the check; collective over all trainers.

    Args:
        check: raises an InputError if the model is wrong. Any other exception, such as a lack of memory,
            is left to the DNN's training.
        rank: index of this trainer.
        num_ranks: number of trainers.
        all_gather: collects one value from each trainer.
        log_file: log of this rank, which holds the tracebacks.
    """

    def __init__(
        self,
        check: Check,
        rank: int,
        num_ranks: int,
        all_gather: Callable[[Any], Sequence[Any]],
        log_file: Path,
    ) -> None:
        self._check = check
        self._rank = rank
        self._num_ranks = num_ranks
        self._all_gather = all_gather
        self._log_file = log_file

    def run(self, dnns: Sequence[DnnConfig], unfinished: Mapping[str, bool]) -> None:
        """Check the models of `dnns` as far as needed.

        Args:
            dnns: all DNNs.
            unfinished: the DNNs that are still to be trained; by name, whether one has a checkpoint.

        Raises:
            InputError: on the first trainer, if the run must not start.
        """
        live = [dnn for dnn in dnns if dnn.name in unfinished]
        begun = {dnn.model: dnn for dnn in reversed(live) if unfinished[dnn.name]}
        if begun:  # one DNN per callable: its code is what may have changed
            self._refuse_if_any_is_wrong(list(begun.values()))
        if fresh := [dnn for dnn in live if not unfinished[dnn.name] and (dnn.init or dnn.freeze)]:
            self._refuse_if_any_is_wrong(fresh)
        elif live and not begun:
            self._refuse_if_none_can_be_built(live)

    def _refuse_if_any_is_wrong(self, dnns: Sequence[DnnConfig]) -> None:
        mine = dnns[self._rank :: self._num_ranks]
        found = self._all_gather([problem for dnn in mine if (problem := self._problem(dnn))])
        self._refuse([problem for problems in found for problem in problems])

    def _refuse_if_none_can_be_built(self, live: Sequence[DnnConfig]) -> None:
        """The first trainer checks the first model. If it is wrong, all trainers look for a right one."""
        mine = self._until_one_is_right(live[:1] if self._rank == 0 else ())
        found = self._all_gather(mine)
        if not found[0]:
            return
        mine = self._until_one_is_right(live[1:][self._rank :: self._num_ranks])
        rest = self._all_gather((mine, len(mine)))
        num_failed = 1 + sum(count for _, count in rest)
        if num_failed == len(live):
            self._refuse(found[0] + [problem for problems, _ in rest for problem in problems])

    def _until_one_is_right(self, dnns: Iterable[DnnConfig]) -> list[tuple[str, str]]:
        problems: list[tuple[str, str]] = []
        for dnn in dnns:
            problem = self._problem(dnn)
            if problem is None:
                break
            problems.append(problem)
        return problems

    def _problem(self, dnn: DnnConfig) -> tuple[str, str] | None:
        """The DNN and what is wrong with its model, if anything."""
        try:
            self._check(dnn)
        except InputError as error:
            log.info("%s", detail_of(error))
            where = f" (traceback in {self._log_file})" if isinstance(error, UserCodeError) else ""
            return dnn.name, f"{error}{where}"
        except Exception as error:
            log.info("the model of %s was not checked: %s", dnn.name, detail_of(error))
        finally:
            leave_if_forked(f"the model of {dnn.name}")
        return None

    def _refuse(self, problems: Sequence[tuple[str, str]]) -> None:
        if problems and self._rank == 0:
            raise InputError(sentences(problems))


def sentences(problems: Sequence[tuple[str, str]]) -> str:
    """One line per kind of problem, with the number of further DNNs that have the same.

    Args:
        problems: name of a DNN and what is wrong with it; at least one.
    """
    names_by_text: dict[str, list[str]] = {}
    for name, text in problems:
        names_by_text.setdefault(text.removeprefix(f"DNN {name}: "), []).append(name)
    lines = []
    for text, names in names_by_text.items():
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        lines.append(f"DNN {names[0]}{more}: {text}")
    return "\n".join(lines)
