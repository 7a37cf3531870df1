"""Which DNNs of an ensemble train on, wait for others, or stop early: `Asha`, `Median` and `Committee`."""

from hpcbal.policies.pruning.committee import Committee
from hpcbal.policies.pruning.rules import Asha, Candidate, Median, PruneRule, Ruling

__all__ = ["Asha", "Candidate", "Committee", "Median", "PruneRule", "Ruling"]
