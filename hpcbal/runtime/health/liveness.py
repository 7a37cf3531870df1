"""The liveness of a rank: it shows what it does and watches its node, from its first lines to its last.

One thread of each rank watches, and needs no MPI, because launchers differ in how soon and how clearly they
react, and MPI itself may be what hangs:

- A rank that is killed (kill -9, out of memory) leaves the others waiting in a collective. The thread sleeps
  until a process ends, so a node with many ranks pays nothing for it.
- A rank that hangs or is suspended notes nothing new in memory that the ranks of its node share. It is
  detected even if no thread of it gets to run, as long as the node has another rank.
- A dataset or model may close descriptors that it has not opened. MPI then fails, or spins for ever, and
  neither its abort nor a launcher reaches the rank.
- `hpcbal run`, which started the ranks, may be killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hpcbal.cluster.roles import SCHEDULER_RANK, RankInfo
from hpcbal.errors import ExitCode
from hpcbal.processes import say
from hpcbal.runtime.handoff.clean_output import discard_output
from hpcbal.runtime.handoff.end_file import note_loss, note_nodes
from hpcbal.runtime.handoff.leftovers import TRAINING, Sentences
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.silence import MAX_SHOWN, WAITING, HangTrace, Note, NoteWatch
from hpcbal.telemetry.resources.processes import Endings, process_is_gone, process_is_suspended

LOOK_S = 0.5
"""Longest time between two looks of the thread at what cannot wake it."""

TOGETHER_S = 0.2
"""How long a death waits for others to be named with it; Open MPI gives the other ranks about a second. On
several nodes there is no time: connections break, so MPI ends ranks, and the launcher all that are left."""

SHARED_MEMORY_DIR = "/dev/shm"
NEARLY_FULL_BYTES = 2**20
"""With less than this left, shared memory may be what killed a rank."""

SPEAKER_GRACE_S = 1.0
"""How long the other ranks of a node wait for the one that reports."""

_BEATS, _TEXT, ROW_BYTES = 1, 9, 169
"""Where a rank's row in the shared memory holds its beats and its text, and the length of the row. The first
byte says that the rank ends the job. A longer text is cut."""

T = TypeVar("T")


class Liveness:
    """A rank's signs of life, and those that it sees of its node's ranks; `start` begins to watch.

    Args:
        rank: rank of this process, if known.
        start: the start file; without one, a launcher of the site has started the rank.
        sentences: of the verb.
    """

    def __init__(
        self, rank: int | None = None, start: StartFile | None = None, sentences: Sentences = TRAINING
    ) -> None:
        self._who = f"{'a rank' if rank is None else f'rank {rank}'} on {socket.gethostname()}"
        self._start, self._sentences = start or StartFile(None), sentences
        self._rows = [memoryview(bytearray(ROW_BYTES))]
        self._mine = self._rows[0]
        self._num_beats = 0
        self._trace: HangTrace | None = None
        self._endings = Endings()
        self._node: dict[int, RankInfo] = {}
        self._others: list[str] = []  # hosts of the other nodes
        self._notes: NoteWatch | None = None
        self._places: dict[int, int] = {}  # among the ranks of this node, of those whose notes are watched
        self._is_watching = False

    # ---- what this rank does -----------------------------------------------------------------

    def note(self, doing: str) -> None:
        """This rank lives, and does this from now on, such as "training resnet8"."""
        self._num_beats += 1
        text = doing.encode()[: ROW_BYTES - _TEXT].ljust(ROW_BYTES - _TEXT, b"\0")
        self._mine[_BEATS:] = self._num_beats.to_bytes(_TEXT - _BEATS, "little") + text
        if self._trace is not None:
            self._trace.renew()

    def wait(self) -> None:
        """This rank waits for others from now on, which may last as long as their work."""
        self.note(WAITING)
        if self._trace is not None:
            self._trace.pause()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs, this rank waits for others."""
        before = str(self)
        self.wait()
        yield
        self.note(before)

    def doing(self, what: str, work: Callable[[], T]) -> Callable[[], T]:
        """The same work as a step that others may wait for: noted before, and over afterwards."""

        def noted() -> T:
            self.note(what)
            try:
                return work()
            finally:
                self.wait()

        return noted

    def __str__(self) -> str:
        return self._note_in(self._mine).doing

    @contextlib.contextmanager
    def traced(self, log_path: Path, timeout_s: float) -> Iterator[None]:
        """While the block runs, write this rank's stacks into a log when it hangs; see `HangTrace`."""
        self._trace = trace = HangTrace(log_path, timeout_s)
        try:
            yield
        finally:
            self._trace = None
            trace.close()

    # ---- what the ranks of the node show each other --------------------------------------------

    def share(self, memory: Any, num_bytes: int, node_rank: int) -> None:
        """Move the notes into this memory, which the ranks of a node share.

        Args:
            memory: a buffer.
            num_bytes: length of the part to use: `ROW_BYTES` for each rank.
            node_rank: this rank's place among them.
        """
        whole, mine = memoryview(memory).cast("B"), self._mine
        self._rows = [whole[at : at + ROW_BYTES] for at in range(0, num_bytes, ROW_BYTES)]
        self._rows[node_rank][:] = mine
        self._mine = self._rows[node_rank]

    def unshare(self) -> None:
        """Keep no view of shared memory: one of freed memory would crash the process."""
        self.share(bytearray(ROW_BYTES), ROW_BYTES, 0)

    def announce_end(self) -> None:
        """Let the ranks of this node know that this rank is ending the job, and reports the reason."""
        self._mine[0] = 1

    def is_ending(self) -> bool:
        """Whether a rank of this node is ending the job."""
        return any(row[0] for row in self._rows)

    def note_of(self, node_rank: int) -> Note:
        """Return the last note of a rank.

        Args:
            node_rank: its place among the ranks of this node.
        """
        return self._note_in(self._rows[node_rank]) if node_rank < len(self._rows) else Note(0, "")

    @staticmethod
    def _note_in(row: memoryview) -> Note:
        text = bytes(row[_TEXT:]).partition(b"\0")[0].decode(errors="replace")
        return Note(int.from_bytes(row[_BEATS:_TEXT], "little"), text)

    # ---- what this rank watches ----------------------------------------------------------------

    def start(self) -> None:
        """Watch this process and the one that started it, from a thread, until this process ends."""
        self._canary = os.open(os.devnull, os.O_RDWR)
        self._device = os.fstat(self._canary).st_rdev
        self._starter_pid = self._start.read().starter_pid
        is_orphan = self._starter_pid is not None and not self._endings.add(self._starter_pid)
        threading.Thread(target=self._live, args=(is_orphan,), name="liveness", daemon=True).start()

    def watch(
        self,
        rank: int,
        ranks: Sequence[RankInfo],
        role_of: Callable[[int], str],
        abort: Callable[[int], None],
        note: Callable[[str], None] = lambda words: None,
    ) -> None:
        """End the job when a process of another rank of this node ends, until `stop`.

        The lowest rank reports that is neither dead, nor suspended, nor silent. If `hpcbal` started the
        ranks, it reports instead, so each death is reported once even if no rank has the time for it.

        Args:
            rank: this rank.
            ranks: all ranks; those whose process cannot be seen (another pid namespace) are not watched.
            role_of: returns the role of a rank, for the message.
            abort: ends the job with an exit code.
            note: called with the reason before the job ends.
        """
        self._rank, self._role_of, self._abort, self._tell = rank, role_of, abort, note
        self._node = {info.rank: info for info in ranks if info.node == ranks[rank].node}
        self._is_one_of_several = len(self._node) < len(ranks)
        hosts = list(dict.fromkeys(info.host for info in ranks))
        self._others = [host for host in hosts if host != ranks[rank].host]
        self._is_watching = True
        for info in self._node.values():
            if info.rank != rank:
                self._endings.add(info.pid)
        if rank == SCHEDULER_RANK:
            self._start.add(is_watched=True)
            if self._others:
                note_nodes(hosts)

    def watch_notes(self, timeout_s: float, logs: Path, of: Collection[int] | None = None) -> None:
        """Also end the job if a rank of this node notes nothing new for so long; see `NoteWatch`.

        Args:
            timeout_s: the value of `stall_timeout_s`.
            logs: the directory of the ranks' logs, for the message.
            of: the ranks; None: all of this node.
        """
        ranks = [info for info in self._node.values() if of is None or info.rank in of]
        places = {rank: place for place, rank in enumerate(self._node)}
        self._places = {info.rank: places[info.rank] for info in ranks}
        if ranks:
            self._notes = NoteWatch(ranks, timeout_s, logs, time.monotonic(), self._sentences)

    def stop(self) -> None:
        """Watch no other rank any more; call this after all ranks have agreed to leave."""
        self._is_watching = False

    def _live(self, is_orphan: bool) -> None:
        orphaned_s = self._lose_starter() if is_orphan else None
        while orphaned_s is None or time.monotonic() - orphaned_s < self._sentences.orphaned_s:
            trace = self._trace
            left_s = LOOK_S if trace is None else trace.left_s()
            ended = self._endings.wait(min(LOOK_S, left_s))
            if self._is_cut():
                self._report_cut()
                break
            if self._starter_pid in ended:
                orphaned_s = self._lose_starter()
            if trace is not None:
                trace.look()
            if self._is_watching:
                self._look_at_node(ended)
        os._exit(int(ExitCode.INTERNAL_ERROR))

    def _lose_starter(self) -> float:
        """Discard what this process prints, because nobody reads it, and what fills the pipe already."""
        for stream in (1, 2):
            os.dup2(self._canary, stream)
        if self._start.path is not None:
            discard_output(self._start.path.parent)
        return time.monotonic()

    def _is_cut(self) -> bool:
        """Whether the first descriptor of this process was closed, and others with it."""
        try:
            return os.fstat(self._canary).st_rdev != self._device
        except OSError:
            return True

    def _report_cut(self) -> None:
        text = (
            f"{self._who}{_seen(str(self))}: code of the user closed file descriptors that it had not "
            "opened (for example with os.closerange), and MPI cannot work without them; the job ends here. "
            f"Close only what your code has opened. {self._sentences.again}"
        )
        if not self._start.leave_last_words(text):
            say(f"hpcbal: {text}")
        self._start.hint(abort_code=int(ExitCode.INTERNAL_ERROR))

    def _look_at_node(self, ended: Collection[int]) -> None:
        if ended and any(info.pid in ended for info in self._node.values()):
            if not self._is_one_of_several:
                time.sleep(TOGETHER_S)
            ended = {*ended, *self._endings.wait(0.0)}
            dead = [info for info in self._node.values() if info.pid in ended]
            if self._is_watching:
                message = self._death_of(dead)
                noted = None if self.is_ending() else note_loss(message, self._node[self._rank].host)
                self._end_job(message, ExitCode.INTERNAL_ERROR, noted=noted)
        if self._notes is not None:
            notes = {rank: self.note_of(place) for rank, place in self._places.items()}
            silence = self._notes.look(notes, time.monotonic())
            if silence is not None and self._is_watching:
                self._end_job(silence.sentence, ExitCode.STALLED, silence.ranks)

    def _death_of(self, dead: Sequence[RankInfo]) -> str:
        places = list(self._node)
        names = ", ".join(
            f"rank {peer.rank} ({self._role_of(peer.rank)}, pid {peer.pid}) on host {peer.host}"
            f"{_seen(self.note_of(places.index(peer.rank)).doing)}"
            for peer in dead
        )
        others = ", ".join(self._others[:MAX_SHOWN]) + ", ..." * (len(self._others) > MAX_SHOWN)
        others = f" (of {others})" if others else ""
        by_mpi = f", or by MPI because a rank or node elsewhere was lost{others}: see the launcher's messages"
        by_mpi = by_mpi if self._is_one_of_several else ""
        return (
            f"{names} died without an error message: killed by a signal (kill -9, or the out-of-memory "
            f"killer: see dmesg{_by_shared_memory()}), crashed, or ended by code of the user (such as "
            f"os._exit, or _exit in C){by_mpi}; the job ends here. {self._sentences.again}"
        )

    def _end_job(
        self, message: str, code: ExitCode, accused: Collection[int] = (), noted: str | None = None
    ) -> None:
        """Report, or let another rank of the node report, and end the job.

        Args:
            noted: what the job script reports, see `note_loss`.
        """
        able = [rank for rank, info in self._node.items() if rank == self._rank or _runs(info.pid)]
        speaker = min([rank for rank in able if rank not in accused] or able)
        if self.is_ending() or speaker != self._rank:
            time.sleep(SPEAKER_GRACE_S)  # another rank reports the reason; abort even if it cannot
        else:
            # what the dead rank has said itself, if anything
            words = self._start.read().last_words or (message if noted is None else noted)
            if noted is None and not self._start.leave_last_words(message):
                say(f"hpcbal: {message}")
            if words:
                self._tell(words)
        self._abort(int(code))


def _seen(doing: str) -> str:
    """A rank's last note, for a sentence about its end: behind the rank and its host; may be empty."""
    return f" (last seen {doing})" if doing else ""


def _by_shared_memory() -> str:
    """For that sentence: whether shared memory may be the cause, whose first use kills where none is left."""
    try:
        space = os.statvfs(SHARED_MEMORY_DIR)
    except OSError:
        return ""
    left = space.f_bavail * space.f_frsize
    if left > NEARLY_FULL_BYTES:
        return ""
    return f"; or SIGBUS, because {SHARED_MEMORY_DIR} is full: {left} bytes are free"


def _runs(pid: int) -> bool:
    return not process_is_gone(pid) and not process_is_suspended(pid)
