"""Which DNNs of an ensemble train on, wait for others, or stop early: `Asha` and `Median`."""

from hpcbal.policies.pruning.asha import Asha
from hpcbal.policies.pruning.median import Median
from hpcbal.policies.pruning.task import Candidate, PruneRule, Ruling

__all__ = ["Asha", "Candidate", "Median", "PruneRule", "Ruling"]
