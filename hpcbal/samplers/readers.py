"""Find out who reads a sampler, because some frameworks share its steps out once more."""

from __future__ import annotations

import sys

from hpcbal.errors import SamplerError

_MOST_FRAMES = 8
_ADVICE = (
    "use sampler.loader(dataset) as it is, without accelerator.prepare, or set num_processes = 1 and "
    "process_index = 0 of the prepared loader's batch_sampler"
)


def refuse_resharding() -> None:
    """Look at who called the caller for an object that hands each rank only a part of the steps.

    Raises: SamplerError: accelerate's BatchSamplerShard, for more than one process, or its
        DataLoaderDispatcher.
    """
    frame = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        reader = frame.f_locals.get("self")
        kinds = {kind.__name__ for kind in type(reader).__mro__}
        if "BatchSamplerShard" in kinds and getattr(reader, "num_processes", 1) > 1:
            raise SamplerError(
                "accelerate shares the sampler's steps out once more (BatchSamplerShard), and most samples "
                f"would be lost; {_ADVICE}"
            )
        if "DataLoaderDispatcher" in kinds:
            raise SamplerError(
                "accelerate reads all batches on one rank (dispatch_batches), so shares would be mixed up; "
                "use dispatch_batches=False and sampler.loader(dataset) without accelerator.prepare"
            )
        if frame.f_back is None:
            return
        frame = frame.f_back
