"""A collection of real texts that every machine has: the documentation inside Python's standard library."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from hpcbal.errors import DataError
from hpcbal.paramserver.api import IntArray, Ragged
from hpcbal.paramserver.apps.sources import ArraySource, check_counts

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
