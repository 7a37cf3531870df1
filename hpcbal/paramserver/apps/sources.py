"""Sources of samples: arrays in memory, samples that are generated when they are read, and real texts."""

from __future__ import annotations

import re
import sysconfig
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import DataError, InputError
from hpcbal.paramserver.api.app import Fact
from hpcbal.paramserver.api.columns import (
    Column,
    Columns,
    IntArray,
    Ragged,
    gather,
    num_samples_of,
    share_offsets,
)


class ArraySource:
    """Samples in memory.

    Attributes:
        num_samples, facts: see `SampleSource`.
        target: one number per observation, for apps whose samples are features; else None.
    """

    def __init__(
        self, columns: Columns, facts: Mapping[str, Fact], target: NDArray[Any] | None = None
    ) -> None:
        """Use the arrays as they are, without a copy.

        Args:
            columns: at least one; all with the same number of samples, at least 1. Those of pandas are taken
                in their order, whatever their index is.
            facts, target: see above.

        Raises:
            InputError: there are no samples.
            ValueError: columns have different numbers of samples.
        """
        columns = {
            name: column if isinstance(column, Ragged) else np.asarray(column)
            for name, column in columns.items()
        }
        num_samples = num_samples_of(columns)
        if not num_samples:
            raise InputError("data: got no samples, allowed: at least 1")
        self.num_samples, self.facts = num_samples, dict(facts)
        self.target = None if target is None else np.asarray(target)
        self._columns = share_offsets(columns)

    def read(self, samples: IntArray) -> Columns:
        """Copies of the samples."""
        if len(samples) and np.array_equal(samples, np.arange(samples[0], samples[0] + len(samples))):
            return share_offsets(
                {name: _run(column, int(samples[0]), len(samples)) for name, column in self._columns.items()}
            )
        return gather([(self._columns, samples)])


def _run(column: Column, start: int, count: int) -> Column:
    """A copy of neighbouring samples, several times as fast as one by one."""
    if not isinstance(column, Ragged):
        return column[start : start + count].copy()
    offsets = column.offsets[start : start + count + 1]
    return Ragged(column.values[offsets[0] : offsets[-1]].copy(), offsets - offsets[0])


class GeneratedSource(ABC):
    """Samples that are made when they are read, each from random numbers of its own.

    So any rank can read any part, and a set needs no memory. A sample takes some 50 microseconds.

    Attributes:
        num_samples, facts: see `SampleSource`.
        ragged: names of the ragged columns.
    """

    ragged: ClassVar[tuple[str, ...]] = ()

    def __init__(self, num_samples: int, seed: int, **facts: Fact) -> None:
        self.num_samples, self.facts = num_samples, facts
        self._seed = seed

    @abstractmethod
    def make(self, sample: int, rng: np.random.Generator) -> Mapping[str, Any]:
        """One sample: for a ragged column an array, for any other a number or an array of fixed shape."""

    def read(self, samples: IntArray) -> Columns:
        """Make the samples."""
        made = [self.make(sample, self._rng(sample)) for sample in samples.tolist()]
        columns: dict[str, Column] = {}
        for name in made[0]:
            entries = [np.asarray(each[name]) for each in made]
            columns[name] = Ragged.of(entries) if name in self.ragged else np.stack(entries)
        return share_offsets(columns)

    def _rng(self, *place: int) -> np.random.Generator:
        """Random numbers of a sample; of something that all samples share if there are two numbers."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, *place])))


def check_counts(function: str, **counts: float) -> None:
    """Raise if a number of something is below 1, or a seed below 0.

    Raises:
        InputError: one is.
    """
    for name, count in counts.items():
        least = 0 if name == "seed" else 1
        if isinstance(count, bool) or not isinstance(count, int | float) or not count >= least:
            raise InputError(f"data.args.{name} of {function}: got {count!r}, allowed: a number >= {least}")


_TEXT = re.compile(r'"""(.*?)"""', re.DOTALL)
_WORD = re.compile(r"[a-z]{3,}")
_OTHERS = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data")
"""Directories that are not the library itself, or are left out of some packages of it."""

STOP_WORDS = frozenset(
    _WORD.findall(
        "all also and any are but can class def does each for from get given has have how if into its may "
        "more must new none not one only other out return returned returns same self set should some such "
        "than that the their them then there these they this true false type use used uses using value was "
        "what when where which will with you"
    )
)
"""Words that say little of what a text is about."""


class TextSource(ArraySource):
    """Documents in memory.

    Attributes:
        vocabulary: the words; their places are the ids in the column `words`.
    """

    def __init__(self, documents: Sequence[IntArray], vocabulary: tuple[str, ...]) -> None:
        super().__init__({"words": Ragged.of(documents)}, {"num_words": len(vocabulary)})
        self.vocabulary = vocabulary


def library_texts(least_words: int = 10, least_texts: int = 5) -> TextSource:
    """Texts between triple quotes in the modules of Python's standard library, for `LDA`.

    About 3,500 documents of 33 words, depending on the version of Python: all ranks must run the same.
    Words are runs of at least three letters, in lower case; `STOP_WORDS` are left out.

    Args:
        least_words: shorter texts are left out, >= 1.
        least_texts: words that are in fewer texts are left out, >= 1.

    Raises:
        DataError: the library's modules are not there as text.
        InputError: an argument is out of range.
    """
    check_counts("library_texts", least_words=least_words, least_texts=least_texts)
    texts = [[word for word in text if word not in STOP_WORDS] for text in _texts()]
    num_texts_of = Counter(word for text in texts for word in set(text))
    vocabulary = sorted(word for word, count in num_texts_of.items() if count >= least_texts)
    id_of = {word: number for number, word in enumerate(vocabulary)}
    documents = [[id_of[word] for word in text if word in id_of] for text in texts]
    kept = [np.array(sorted(document), np.int64) for document in documents if len(document) >= least_words]
    if not kept:
        raise DataError(
            f"{_directory()}: there are no modules with texts; install Python's standard library as text, or "
            "use another dataset such as hpcbal.paramserver.apps:generated_documents"
        )
    return TextSource(kept, tuple(vocabulary))


def _directory() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


@lru_cache(maxsize=1)
def _texts() -> list[list[str]]:
    """The words of every text, in order of paths."""
    root = _directory()
    found = []
    for path in sorted(root.rglob("*.py")):
        if not set(path.relative_to(root).parts) & set(_OTHERS):
            content = path.read_text(encoding="utf-8", errors="replace")
            found += [_WORD.findall(text.lower()) for text in _TEXT.findall(content)]
    return found
