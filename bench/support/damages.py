"""Damage one file or directory of a run, in the ways in which disks, editors and people do it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

FOREIGN = b"this file belongs to somebody else\n"
"""Content of the file outside of the run to which a symbolic link points."""

NOT_THERE = "left as it was"

WRONG_LINES = (
    b"{}\n",
    b'{"schema": 2, "seq": null, "time": "2025-01-31T12:00:00.000Z", "event": "dnn-done", "dnn": "a"}\n',
    b'{"schema": 2, "seq": "7", "time": "soon", "event": "epoch-done", "dnn": 3, "epoch": "four"}\n',
    b'{"schema": 99, "seq": 7, "time": "2025-01-31T12:00:00.000Z", "event": "dnn-done"}\n',
    b'{"epoch": "2", "loss": {"a": []}}\n',
    b"[1, 2, 3]\n",
    b"\xff\xfe not text \x00\n",
    b"no line of any file: at all\n",
    b"[" * 5000 + b"\n",
    b"9" * 400 + b"\n",
)


def flip_bits(path: Path, rng: random.Random, count: int = 1) -> str:
    """Flip some bits."""
    data = bytearray(path.read_bytes())
    places = [rng.randrange(8 * len(data)) for _ in range(count)] if data else []
    for place in places:
        data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    return f"flipped bits {places}"


def flip_many(path: Path, rng: random.Random) -> str:
    """Flip two to twenty bits."""
    return flip_bits(path, rng, rng.randint(2, 20))


def cut(path: Path, rng: random.Random) -> str:
    """Keep only the beginning."""
    data = path.read_bytes()
    length = rng.randrange(len(data)) if data else 0
    path.write_bytes(data[:length])
    return f"cut to {length} of {len(data)} bytes"


def zero(path: Path, rng: random.Random) -> str:
    """Overwrite up to 4 KiB with zeros."""
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data)) if data else 0
    stop = min(len(data), start + 4096)
    data[start:stop] = bytes(stop - start)
    path.write_bytes(data)
    return f"zeros from {start} to {stop}"


def append_zeros(path: Path, rng: random.Random) -> str:
    """Add 4 KiB of zeros, as some file systems do when the power fails."""
    with path.open("ab") as file:
        file.write(bytes(4096))
    return "4096 zeros at the end"


def insert_line(path: Path, rng: random.Random) -> str:
    """Insert a wrong line before a line, or at the end."""
    lines = path.read_bytes().splitlines(keepends=True)
    place, wrong = rng.randint(0, len(lines)), rng.choice(WRONG_LINES)
    path.write_bytes(b"".join([*lines[:place], wrong, *lines[place:]]))
    return f"{wrong[:40]!r} before line {place + 1}"


def lose_lines(path: Path, rng: random.Random) -> str:
    """Remove one to three lines in a row."""
    lines = path.read_bytes().splitlines(keepends=True)
    place, count = rng.randrange(max(1, len(lines))), rng.randint(1, 3)
    path.write_bytes(b"".join([*lines[:place], *lines[place + count :]]))
    return f"{count} lines lost from line {place + 1} on"


def repeat_line(path: Path, rng: random.Random) -> str:
    """Write a line twice."""
    lines = path.read_bytes().splitlines(keepends=True)
    place = rng.randrange(max(1, len(lines)))
    path.write_bytes(b"".join([*lines[: place + 1], *lines[place:]]))
    return f"line {place + 1} twice"


def replace_by_garbage(path: Path, rng: random.Random) -> str:
    """Replace the content with random bytes."""
    path.write_bytes(rng.randbytes(rng.randint(1, 4096)))
    return "random bytes"


def empty(path: Path, rng: random.Random) -> str:
    """Leave an empty file."""
    path.write_bytes(b"")
    return "emptied"


def remove(path: Path, rng: random.Random) -> str:
    """Remove the file, or the directory with all that it holds."""
    _remove(path)
    return "removed"


def take_from_another_moment(path: Path, rng: random.Random) -> str:
    """Put the file of another moment of the run in its place, as a copy that is made in training may have."""
    folder = _folder(path)
    root = folder / path.relative_to(folder).parts[0]
    config = _content(root / "config.yaml")
    others = [
        other / path.relative_to(root)
        for other in sorted(folder.iterdir())
        if other != root and _content(other / "config.yaml") == config
    ]
    contents = [content for other in others if (content := _content(other)) not in (None, path.read_bytes())]
    if contents:
        path.write_bytes(rng.choice(contents) or b"")
    return "as it was at another moment" if contents else NOT_THERE


def mix_moments(path: Path, rng: random.Random) -> str:
    """Give each file of a directory the content of a random moment, as a copy made file by file may have."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and rng.random() < 0.5]
    mixed = [file for file in files if take_from_another_moment(file, rng) != NOT_THERE]
    return f"{len(mixed)} files as they were at other moments"


def make_pipe(path: Path, rng: random.Random) -> str:
    """Put a pipe in its place, which nobody ever writes to."""
    _remove(path)
    os.mkfifo(path)
    return "a pipe in its place"


def make_unreadable(path: Path, rng: random.Random) -> str:
    """Take all permissions away."""
    path.chmod(0)
    return "made unreadable"


def make_directory(path: Path, rng: random.Random) -> str:
    """Put a directory, with a file in it, in its place."""
    _remove(path)
    path.mkdir()
    (path / "note").write_bytes(FOREIGN)
    return "a directory in its place"


def make_file(path: Path, rng: random.Random) -> str:
    """Put a file in its place."""
    _remove(path)
    path.write_bytes(FOREIGN)
    return "a file in its place"


def link_outside(path: Path, rng: random.Random) -> str:
    """Put a symbolic link to somebody else's file in its place."""
    _remove(path)
    path.symlink_to(foreign_file(path))
    return "a link to another's file in its place"


def link_nowhere(path: Path, rng: random.Random) -> str:
    """Put a symbolic link to a missing file outside of the run in its place."""
    _remove(path)
    path.symlink_to(foreign_file(path).with_name("not-there"))
    return "a link to nothing in its place"


def link_temporary(path: Path, rng: random.Random) -> str:
    """Put a symbolic link to somebody else's file where the file's successor is written."""
    aside = path.with_name(f"{path.name}.tmp")
    _remove(aside)
    aside.symlink_to(foreign_file(path))
    return f"{aside.name} is a link to another's file"


def foreign_file(path: Path) -> Path:
    """Somebody else's file, in a folder beside the run that holds `path`."""
    return _folder(path) / "foreign" / "file"


def _folder(path: Path) -> Path:
    return next(folder for folder in path.parents if (folder / ".run").exists())


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


Damage = Callable[[Path, random.Random], str]
"""Damages a path; returns what it did."""

OF_FILES: Mapping[str, tuple[Damage, int]] = {
    "flip": (flip_bits, 6),
    "flip-many": (flip_many, 3),
    "cut": (cut, 3),
    "zero": (zero, 2),
    "append-zeros": (append_zeros, 1),
    "insert": (insert_line, 4),
    "lose": (lose_lines, 2),
    "repeat": (repeat_line, 1),
    "garbage": (replace_by_garbage, 1),
    "empty": (empty, 1),
    "remove": (remove, 1),
    "another-moment": (take_from_another_moment, 2),
    "unreadable": (make_unreadable, 1),
    "directory": (make_directory, 1),
    "pipe": (make_pipe, 1),
    "link": (link_outside, 1),
    "link-nowhere": (link_nowhere, 1),
    "link-tmp": (link_temporary, 1),
}
"""Damages of files, each with its weight: what disks do is tried with more places than what people do."""

OF_DIRECTORIES: Mapping[str, tuple[Damage, int]] = {
    "remove": (remove, 1),
    "mix": (mix_moments, 2),
    "pipe": (make_pipe, 1),
    "unreadable": (make_unreadable, 1),
    "file": (make_file, 1),
    "link": (link_outside, 1),
    "link-nowhere": (link_nowhere, 1),
}


def choose(path: Path, rng: random.Random) -> tuple[str, Damage]:
    """A random damage for a path, with its name."""
    known = OF_DIRECTORIES if path.is_dir() else OF_FILES
    (name,) = rng.choices(list(known), [weight for _, weight in known.values()])
    return name, known[name][0]
