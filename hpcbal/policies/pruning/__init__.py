"""Which DNNs of an ensemble train on, wait for others, or stop early: `Asha` and `Median`."""

from hpcbal.policies.pruning.rules import Asha, Candidate, Median, PruneRule, Ruling

__all__ = ["Asha", "Candidate", "Median", "PruneRule", "Ruling"]
