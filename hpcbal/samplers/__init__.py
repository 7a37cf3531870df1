"""Balance the steps of a training loop that is not hpcbal's: plain PyTorch, Lightning, Hugging Face.

Importing this needs NumPy alone; PyTorch is imported when a sampler begins a pass.
"""

from hpcbal.samplers.sampler import BalancedBatchSampler
from hpcbal.samplers.shares import Share

__all__ = ["BalancedBatchSampler", "Share"]
