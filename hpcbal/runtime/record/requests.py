"""Requests of the user to a run that is under way: DNNs that join it, and DNNs that are to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hpcbal.config import DnnConfig, EnsembleConfig
from hpcbal.config.submission import with_items
from hpcbal.control import Ensemble
from hpcbal.runtime.handoff.submissions import append_import_roots
from hpcbal.runtime.record.journal import Journal
from hpcbal.runtime.resuming.known_rates import known_rates
from hpcbal.runtime.resuming.opening import OpenedRun
from hpcbal.runtime.wire.protocol import Joined


class Requests:
    """Looks into the run's directory, and takes in what it finds there.

    Args:
        opened: the run's directory.
        ensemble: the state machine.
        journal: learns of DNNs that join.
        keys_of: makes the keys of the rates of all DNNs, see `rate_keys`.
    """

    def __init__(
        self,
        opened: OpenedRun,
        ensemble: Ensemble,
        journal: Journal,
        keys_of: Callable[[EnsembleConfig], Mapping[str, str]],
    ) -> None:
        self.config = opened.config
        self._run = opened.run
        self._joining = opened.joining
        self._stops = opened.stop_requests
        self._to_stop: list[str] = []
        self._ensemble = ensemble
        self._journal = journal
        self._keys_of = keys_of

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
                yield Joined(dnn, submission.import_roots, rates)

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
