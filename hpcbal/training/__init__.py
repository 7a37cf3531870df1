"""Train on batches: padding, backends and gradient collectives."""
