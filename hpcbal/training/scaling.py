"""How the factor on a loss in float16 changes, whatever library trains; as in Keras' LossScaleOptimizer."""

from __future__ import annotations

FIRST_SCALE = 2.0**15
GROW_AFTER = 2000
"""Steps without overflow before the scale doubles."""

LEAST_SCALE = 1.0
"""With this scale an overflow is one of the network, not of the scale."""

LARGEST_SCALE = 2.0**100
"""Beyond float32 there is nothing to gain, and an infinite scale would never come back."""
