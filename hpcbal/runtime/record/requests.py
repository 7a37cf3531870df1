"""Requests of the user to a run that is under way: DNNs that join it, and DNNs that are to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from hpcbal.config import DnnConfig, EnsembleConfig
from hpcbal.config.schema.prune import COMMITTEE, OpenSearchConfig
from hpcbal.config.submission import (
    Submission,
    free_numbers,
    names_of,
    submission_yaml,
    with_items,
    with_proposed,
)
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.pruning import signed
from hpcbal.control.states import DnnState, Leaving
from hpcbal.ensembling.selection import KnownPredictions, changes_by_each
from hpcbal.errors import InputError
from hpcbal.runtime.handoff.submissions import append_import_roots, next_number, write_submission
from hpcbal.runtime.rank.data import StreamFacts
from hpcbal.runtime.record.journal import Journal
from hpcbal.runtime.resuming.known_rates import known_rates
from hpcbal.runtime.resuming.opening import OpenedRun
from hpcbal.runtime.wire.protocol import Joined
from hpcbal.searching import Result, propose


class Requests:
    """Looks into the run's directory, and takes in what it finds there.

    Args:
        opened: the run's directory.
        ensemble: the state machine.
        journal: learns of DNNs that join.
        keys_of: makes the keys of the rates of all DNNs, see `rate_keys`.
        facts: about the data of the run.
    """

    def __init__(
        self,
        opened: OpenedRun,
        ensemble: Ensemble,
        journal: Journal,
        keys_of: Callable[[EnsembleConfig], Mapping[str, str]],
        facts: StreamFacts,
    ) -> None:
        self.config = opened.config
        self._run = opened.run
        self._joining = opened.joining
        self._stops = opened.stop_requests
        self._to_stop: list[str] = []
        self._ensemble = ensemble
        self._journal = journal
        self._keys_of = keys_of
        self._facts = facts

    def joined(self, warn: Callable[[str], None]) -> Iterator[Joined]:
        """Take in the DNNs that have come since the last call.

        Args:
            warn: called with a sentence about each file that cannot be used.
        """
        submissions, problems = self._joining.look()
        for problem in problems:
            warn(problem)
        for submission in submissions:
            append_import_roots(submission.import_roots)
            self.config = with_items(self.config, submission)
            self._journal.admit(self.config, self._keys_of(self.config), submission.import_roots)
            for dnn in submission.items:
                assert isinstance(dnn, DnnConfig)
                rates = self.config.backend.rates.get(dnn.name, {})
                yield Joined(dnn, submission.import_roots, rates, self._shown(submission, dnn.name))

    def propose(self, number: int, warn: Callable[[str], None]) -> Iterator[Joined]:
        """Let so many DNNs of searches join: each is on disk before it is yielded.

        The search that has the fewest DNNs comes first. DNNs that the user adds meanwhile are yielded, too.

        Args:
            warn: as for `joined`.

        Raises:
            InputError: if optuna is missing, or no search is open.
            ConfigError: if the proposed values do not make a DNN that can join.
            OutputError: if it cannot be written.
        """
        for _ in range(number):
            is_written = False
            while not is_written:
                yield from self.joined(warn)
                open_ones = [search for search in self.config.searches if search.num_open]
                if not open_ones:
                    raise InputError("no search is open")
                search = min(open_ones, key=lambda each: len(each.drawn))
                dnns = self._ensemble.state.dnns
                first = next((dnns[name] for name in search.drawn if name in dnns), None)
                if first is None:
                    raise InputError(f"sweep {search.name}: none of its DNNs is in the run")
                more_is_better = search.search.purpose != COMMITTEE and first.spec.stop.mode == "max"
                results = self._results_of(search)
                values = propose(search, results, self.config.seed, more_is_better=more_is_better)
                number_of_file = next_number(self._run)
                number_of_dnn = next(free_numbers(search, names_of(self.config)))
                joined = with_proposed(self.config, search, {number_of_dnn: values})
                name = joined.dnns[-1].name
                text = submission_yaml(
                    joined, (), names_of(self.config), search=search.name, drawn={name: values}
                )
                is_written = write_submission(self._run, text, number_of_file)
            yield from self.joined(warn)
            if name not in names_of(self.config):
                raise InputError(f"sweep {search.name}: the file in which {name} was proposed cannot be used")

    def _shown(self, submission: Submission, name: str) -> dict[str, str] | None:
        """Return the proposed values of a DNN for people; None if no search has proposed it."""
        if name not in submission.drawn:
            return None
        (search,) = (each for each in self.config.searches if each.name == submission.search)
        choices = {key: search.search.space[key].choice for key in submission.drawn[name]}
        return {
            key: str(value if (own := choices[key]) is None else own[int(value)])
            for key, value in submission.drawn[name].items()
        }

    def _results_of(self, search: OpenSearchConfig) -> list[Result]:
        dnns = self._ensemble.state.dnns
        if search.search.purpose == COMMITTEE:
            curves = self._curves_for_committee()
        else:
            known = [dnns[name] for name in search.drawn if name in dnns]
            curves = {d.spec.dnn_id: [each.metrics[d.spec.stop.monitor] for each in d.history] for d in known}
        return [
            Result(drawn, self._state_of(name), curves.get(name, ())) for name, drawn in search.drawn.items()
        ]

    def _curves_for_committee(self) -> dict[str, list[float]]:
        """Return, in place of the monitored metric, how a DNN in its best epoch changes the committee's loss.

        DNNs that still train are in no committee, so that nothing depends on how far they are.
        """
        dnns = self._ensemble.state.dnns
        standing = {name: dnn for name, dnn in dnns.items() if self._state_of(name) in ("over", "early")}
        known = KnownPredictions.of(
            {
                name: (
                    [signed(each.metrics, dnn) for each in dnn.history],
                    [each.evidence for each in dnn.history],
                )
                for name, dnn in standing.items()
            }
        )
        if known is None:
            return {}
        changes = zip(known.best, changes_by_each(known.rows, known.loss), strict=True)
        return {name: [math.nan] * (dnns[name].epochs - 1) + [change] for name, change in changes}

    def _state_of(self, name: str) -> Literal["over", "early", "training", "failed"]:
        s = self._ensemble.state
        dnn, group = s.dnns.get(name), s.groups.get(name)
        if dnn is None:  # it has joined, and its event is still to be handled; or it was taken out
            return "training" if name in names_of(self.config) else "failed"
        if dnn.state is DnnState.FAILED:
            return "failed"
        leaving = None if group is None else group.leaving
        if dnn.state is DnnState.DONE or leaving is Leaving.CONVERGED:
            return "over"
        is_early = dnn.state in (DnnState.PRUNED, DnnState.STOPPED) or name in s.paused
        is_early |= leaving in (Leaving.PRUNED, Leaving.STOPPED, Leaving.PAUSED)
        return "early" if is_early else "training"

    def check_fits(self, dnn: DnnConfig) -> None:
        """Refuse a DNN that cannot train with the run's ring, see `StreamFacts.check_fits`."""
        self._facts.check_fits(dnn, self.config)

    def rates_of(self, name: str) -> Mapping[int, float]:
        """The rates of a DNN that are known already, samples/s by number of slots.

        Raises:
            InputError: if the user has given a file of rates, and it lacks the DNN.
        """
        keys, slots_per_node = self._keys_of(self.config), self._ensemble.cluster.max_slots_per_node
        return known_rates(self.config, self._run, keys, slots_per_node).measured.get(name, {})

    def to_stop(self) -> tuple[str, ...]:
        """The DNNs that are to stop by requests since the last call, as far as they are not over."""
        state = self._ensemble.state
        asked = [*self._to_stop, *self._stops.take()]
        self._to_stop = [name for name in asked if name not in state.dnns]  # it may be about to join
        return tuple(name for name in dict.fromkeys(asked) if name in state.live)
