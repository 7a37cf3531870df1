"""Whether the data are those that the checkpoints of a run were trained on."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.data.labels import in_words
from hpcbal.errors import DataError
from hpcbal.runtime.resuming.resume import Earlier
from hpcbal.telemetry import RunDirectory


def check_fingerprint(
    run: RunDirectory,
    earlier: Earlier,
    fingerprint: str,
    moved: Sequence[str] = (),
    *,
    is_identified: bool = True,
    class_names: Sequence[str] = (),
) -> str:
    """Refuse to resume with other data.

    Args:
        moved: keys of paths of the data that have changed.
        is_identified: whether the dataset has a fingerprint of its own.
        class_names: of the data, by number; empty if these have none.

    Returns: a sentence about data that have moved; empty if they have not.

    Raises:
        DataError: if a checkpoint was made with data or preprocessing of another fingerprint, or it is not
            known whether it was.
    """
    if earlier.fingerprints and moved and not is_identified:
        raise DataError(
            f"{run.root}: {', '.join(moved)}: changed, but the dataset has no attribute 'fingerprint' that "
            "shows whether these are the data of the run; undo the change, or choose another output.dir"
        )
    for dnn_id, trained_on in earlier.fingerprints.items():
        names = earlier.class_names.get(dnn_id, ())
        if names and class_names and names != tuple(class_names):
            raise DataError(
                f"{run.job(dnn_id)}: the checkpoint was trained on the classes {in_words(names)}, but the "
                f"data have {in_words(class_names)} now (in this order); restore the dataset, or choose "
                "another output.dir"
            )
        if trained_on != fingerprint:
            raise DataError(
                f"{run.job(dnn_id)}: the checkpoint was trained on other data or preprocessing (fingerprint "
                f"{trained_on}, now {fingerprint}); restore the dataset (and with data.lookahead the largest "
                "batch_size, by which the order is cut), or choose another output.dir"
            )
    if not earlier.fingerprints or not moved:
        return ""
    return f"{', '.join(moved)}: changed, but the fingerprint of the data is the same"
