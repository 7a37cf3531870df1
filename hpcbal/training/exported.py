"""The answer of the writers of exported models, one for each framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OF_LINK: Mapping[str, str] = {
    "softmax": "logits of the classes; softmax turns them into probabilities",
    "sigmoid": "logits of the labels; sigmoid turns them into probabilities",
    "identity": "predictions, as the loss {loss} takes them",
}
"""The meaning of a model's outputs for people, by the link of its objective."""


def meaning_of(links: Mapping[str, str], losses: Mapping[str, str | None]) -> str:
    """Return the meaning of a model's outputs for people.

    Args:
        links: link of the objective of each output; of one without a name under `UNNAMED`.
        losses: name of the loss of each; None: the default one.
    """
    found = {name: OF_LINK[link].format(loss=losses.get(name)) for name, link in links.items()}
    return "; ".join(f"{name}: {text}" if name else text for name, text in found.items())


@dataclass(frozen=True, slots=True)
class Written:
    """A model in a file.

    Attributes:
        output_shape: of the output for one sample, or of each output by name.
        meaning: of the outputs, for people.
        modules: what must be imported before the file is loaded.
        notes: what users should know about it.
    """

    output_shape: tuple[int, ...] | Mapping[str, tuple[int, ...]]
    meaning: str
    modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
