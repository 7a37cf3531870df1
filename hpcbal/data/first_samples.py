"""Try a user's operations before anything is trained: a mistake in one of them breaks all samples."""

from __future__ import annotations

from hpcbal.data.bad_sample import BadSample
from hpcbal.data.source import SampleSource
from hpcbal.errors import DataError


def check_first(source: SampleSource, num_samples: int = 3) -> None:
    """Preprocess a few training and validation samples; does nothing if there are no operations of a user.

    A sample that cannot be read shows nothing about operations.

    Args:
        num_samples: of either kind, >= 1.

    Raises:
        DataError: if none of these samples can be preprocessed.
    """
    if not source.is_custom:
        return
    for kind, ids in (("training", source.train_ids), ("validation", source.validation_ids)):
        broken: list[BadSample] = []
        num_tried = 0
        for sample_id in ids[:num_samples].tolist():
            try:
                source.read(sample_id)
            except BadSample:
                continue
            num_tried += 1
            try:
                source.sample(sample_id, 0, training=kind == "training")
            except BadSample as error:
                broken.append(error)
        if broken and len(broken) == num_tried:
            raise DataError(
                f"preprocessing: none of the {kind} samples that were tried can be preprocessed: {broken[0]}"
            )
