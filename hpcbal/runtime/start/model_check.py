"""Before anything is trained: refuse a run whose models are wrong, instead of failing its DNNs one by one.

The trainers build a few models and drop them. A run is refused if no DNN of a callable can be built: the
mistake is in the callable, and would otherwise be found when the round of its first DNN comes. If some can,
or one has ended, the others fail when they are built for training, as combinations of a search may; but if
no model at all can be built, the run is refused. A run is also refused if a DNN that has not begun, and has
`init` or `freeze`, cannot be built with them, and if a model differs from its checkpoint, so that the DNN can
go on once the old code is back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
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

    def run(
        self, dnns: Sequence[DnnConfig], unfinished: Mapping[str, bool], joined: Collection[str] = ()
    ) -> None:
        """Check the models of `dnns` as far as needed.

        Args:
            dnns: all DNNs.
            unfinished: the DNNs that are still to be trained; by name, whether one has a checkpoint.
            joined: names of DNNs that have joined the run: those that have not begun are built when they
                train, and fail alone.

        Raises:
            InputError: on the first trainer, if the run must not start.
        """
        dnns = [dnn for dnn in dnns if dnn.name not in joined or unfinished.get(dnn.name, True)]
        live = [dnn for dnn in dnns if dnn.name in unfinished]
        begun = {dnn.model: dnn for dnn in reversed(live) if unfinished[dnn.name]}
        changed = [dnn for dnn in live if not unfinished[dnn.name] and (dnn.init or dnn.freeze)]
        single = [*begun.values(), *changed]  # of those that have begun one per callable
        if wrong := self._problems(single):
            self._refuse(wrong)
            return  # on the other trainers
        known = {dnn.model for dnn in single}
        by_callable: dict[str, list[DnnConfig]] = {}
        for dnn in live:
            if dnn.model not in known:
                by_callable.setdefault(dnn.model, []).append(dnn)
        problems = dict(self._problems([of_one[0] for of_one in by_callable.values()]))
        if doubtful := [of_one for of_one in by_callable.values() if of_one[0].name in problems]:
            problems.update(self._problems([dnn for of_one in doubtful for dnn in of_one[1:]]))
            hopeless = [of_one for of_one in doubtful if all(dnn.name in problems for dnn in of_one)]
            if known or len(hopeless) < len(by_callable):  # otherwise nothing at all can be trained
                ended = {dnn.model for dnn in dnns if dnn.name not in unfinished}
                hopeless = [of_one for of_one in hopeless if of_one[0].model not in ended]
            self._refuse([(dnn.name, problems[dnn.name]) for of_one in hopeless for dnn in of_one])

    def _problems(self, dnns: Sequence[DnnConfig]) -> list[tuple[str, str]]:
        """Check models, each on one trainer, and return on all trainers what is wrong with which DNN."""
        mine = dnns[self._rank :: self._num_ranks]
        found = self._all_gather([problem for dnn in mine if (problem := self._problem(dnn))])
        by_name = {name: text for problems in found for name, text in problems}
        return [(dnn.name, by_name[dnn.name]) for dnn in dnns if dnn.name in by_name]

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
