"""Bound the epoch time of every configuration from below, and find the cases near that bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.policies.configuring.cost_model import Problem
from hpcbal.policies.configuring.homogeneous import FloatArray, IntArray, Kinds
from hpcbal.policies.configuring.worker_times import WorkerTimes, served

_WHOLE = 1e-9
_RESOLUTION = 1.0 + 2e-4
"""Ratio of an epoch time that is possible for all that is proven and one that is not."""
_MULTIPLIERS = (0.125, 0.5, 1.0, 2.0, 8.0)
_MOST_CLASSES = 5
_MOST_WORK = 400_000
"""Boxes times kinds that are looked at for one epoch time; then it counts as possible, which is safe."""
_MOST_CELLS = 16_384
"""Numbers in an array: kinds times boxes that are looked at together."""


@dataclass(frozen=True, slots=True, eq=False)
class _Boxes:
    """Ranges of configurations, one box per row.

    Attributes:
        fewest, most: workers in all, and then of each class of links; shape (num_boxes, 1 + num_classes).
        low, high: level of the servers.
    """

    fewest: IntArray
    most: IntArray
    low: FloatArray
    high: FloatArray

    def __getitem__(self, rows: slice | IntArray) -> _Boxes:
        return _Boxes(self.fewest[rows], self.most[rows], self.low[rows], self.high[rows])

    @property
    def is_point(self) -> npt.NDArray[np.bool_]:
        level = self.high <= self.low * (1 + 4 * _WHOLE)
        return np.asarray((self.fewest == self.most).all(axis=1) & level)

    def halves(self) -> _Boxes:
        """Each box in two, across the relatively widest of its ranges."""
        widths = np.log((self.most + 1.0) / (self.fewest + 1.0))
        level = np.log(self.high / self.low)
        level = np.where(level <= 4 * _WHOLE, 0.0, level)
        column = np.argmax(widths, axis=1)
        rows = np.arange(len(self.low))
        by_level = level > widths[rows, column]
        middle = (self.fewest[rows, column] + self.most[rows, column]) // 2
        between = np.sqrt(self.low * self.high)
        upper_fewest, lower_most = self.fewest.copy(), self.most.copy()
        lower_most[rows, column] = np.where(by_level, self.most[rows, column], middle)
        upper_fewest[rows, column] = np.where(by_level, self.fewest[rows, column], middle + 1)
        return _Boxes(
            np.concatenate([self.fewest, upper_fewest]),
            np.concatenate([lower_most, self.most]),
            np.concatenate([self.low, np.where(by_level, between, self.low)]),
            np.concatenate([np.where(by_level, between, self.high), self.high]),
        )


class Relaxation:
    """Which epoch times no configuration can reach, proven by knapsacks without whole machines.

    A configuration has w workers and a level u = max_j(f_j * serve_s_j) over its servers j, with f_j the
    share of the M parameter blocks that j holds. Take a box of configurations with w1 <= w <= w2 and
    u1 <= u <= u2, and an epoch time T. Let C_j = floor(M * u2 / serve_s_j).

    The box also says that q1 to q2 machines of each class of links are workers.

    1. Server j holds at most C_j blocks, so the sum of C_j over the servers is at least M. With n machines
       this is: the sum of C_i over the workers is at most (sum of C over all machines) - M =: L.
    2. Serving takes a worker at least as long as with w1 workers at level u1, because `served` grows
       with w. Its own transfers take at least as long as if all machines of a class but q1 were servers, the
       fastest links were filled first, and each server j held up to C_j blocks. So worker i completes by T
       at most the g_i data blocks that `WorkerTimes.within` gives for these times; it counts whole blocks.
    3. There are at most w2 workers, and q1 to q2 of each class. Every worker completes a block, so none has
       g_i = 0.

    So if the box has a configuration with an epoch of at most T, the number of data blocks is at most

        max sum_i(x_i * g_i),  subject to  sum_i(x_i * C_i) <= L,  sum_i(x_i) <= w2,  0 <= x_i <= 1.

    For each multiplier a >= 0 the two constraints imply sum_i(x_i * (C_i + a)) <= L + a * w2, which leaves a
    continuous knapsack: the kinds with the most blocks per weight first. Its value for any a is an upper
    bound; the least over some values of a is taken, among them a = infinity (the second constraint alone).

    A box whose bound is below the number of data blocks holds no configuration with an epoch of T or less.
    The others are divided, and shrunk to levels x * serve_s_j / M of whole blocks x. If all boxes are closed,
    T is a lower bound of the epoch of every configuration: u is at least that of all machines as servers, and
    at most max(serve_s) and T divided by the bytes that are served. The memory of servers is
    left out, which only lowers the bound.
    """

    def __init__(self, problem: Problem, kinds: Kinds, most_workers: int) -> None:
        self._problem = problem
        self._kinds = kinds
        self._most = most_workers
        classes = _classes(kinds)
        # Members of each class, shape (num_classes, num_kinds).
        self._members = classes == np.arange(int(classes.max()) + 1)[:, None]
        self._by_link = np.argsort(kinds.link_s, kind="stable")

    def lower_bound(self, upper_s: float) -> float:
        """An epoch time that no configuration undercuts.

        Args:
            upper_s: epoch time of some configuration.
        """
        low_s, high_s, factor = 0.0, upper_s, _RESOLUTION
        while low_s == 0.0:
            if self.reach(high_s / factor) is None:
                low_s = high_s / factor
            else:
                high_s /= factor
                factor = min(factor**2, 2.0)
        while high_s > low_s * _RESOLUTION:
            middle_s = float(np.sqrt(low_s * high_s))
            if self.reach(middle_s) is None:
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s

    def reach(self, deadline_s: float) -> tuple[IntArray, IntArray] | None:
        """A case that the proof does not exclude for this epoch time; None if it excludes all.

        Returns: whole numbers of workers by kind, and the kinds in the order in which they become workers.
        """
        first = self._all(deadline_s)
        waiting = [first] if first is not None else []
        size = max(1, _MOST_CELLS // len(self._kinds.size))
        budget = _MOST_WORK // len(self._kinds.size)
        while waiting:
            boxes = waiting.pop()
            if len(boxes.low) > size:
                waiting.append(boxes[slice(0, len(boxes.low) - size)])
                boxes = boxes[slice(len(boxes.low) - size, None)]
            budget -= len(boxes.low)
            boxes = self._tightened(boxes)
            reached = self._most_blocks(deadline_s, boxes)
            # Ascending, so that the most promising boxes are divided first.
            order = np.argsort(reached, kind="stable")
            boxes = boxes[order[reached[order] >= self._problem.num_data_blocks * (1 - _WHOLE)]]
            points = boxes.is_point | (budget <= 0)
            if bool(points.any()):
                return self._case(deadline_s, boxes[np.flatnonzero(points)[-1:]])
            if len(boxes.low):
                waiting.append(boxes.halves())
        return None

    def _tightened(self, boxes: _Boxes) -> _Boxes:
        """Boxes that end at levels that whole blocks can have; those without such a level are left out."""
        unit = self._kinds.serve_s / self._problem.num_parameter_blocks
        low = (np.ceil(boxes.low[:, None] / unit - _WHOLE) * unit).min(axis=1)
        high = (np.floor(boxes.high[:, None] / unit + _WHOLE) * unit).max(axis=1)
        fewest, most = boxes.fewest.copy(), boxes.most.copy()
        # The number in all and the numbers by class limit each other.
        fewest[:, 0] = np.maximum(fewest[:, 0], boxes.fewest[:, 1:].sum(axis=1))
        most[:, 0] = np.minimum(most[:, 0], boxes.most[:, 1:].sum(axis=1))
        others = boxes.most[:, 1:].sum(axis=1)[:, None] - boxes.most[:, 1:]
        fewest[:, 1:] = np.maximum(fewest[:, 1:], fewest[:, :1] - others)
        others = boxes.fewest[:, 1:].sum(axis=1)[:, None] - boxes.fewest[:, 1:]
        most[:, 1:] = np.minimum(most[:, 1:], most[:, :1] - others)
        full = (low <= high * (1 + _WHOLE)) & (fewest <= most).all(axis=1)
        return _Boxes(fewest, most, low, high)[np.flatnonzero(full)]

    def _all(self, deadline_s: float) -> _Boxes | None:
        """One box that holds every configuration with an epoch of at most `deadline_s`."""
        kinds = self._kinds
        first = 1.0 / float((kinds.size / kinds.serve_s).sum())
        last = float(kinds.serve_s.max())
        num_bytes = float(served(self._problem, 1))
        if num_bytes > 0:
            last = min(last, deadline_s / num_bytes)
        if last < first:
            return None
        most = np.minimum(self._members @ kinds.most_workers, self._most)
        return _Boxes(
            np.concatenate([[1], np.zeros_like(most)])[None, :],
            np.concatenate([[self._most], most])[None, :],
            np.array([first * (1 - _WHOLE)]),
            np.array([last * (1 + _WHOLE)]),
        )

    def _caps(self, boxes: _Boxes) -> FloatArray:
        """C_j of the proof, shape (num_boxes, num_kinds)."""
        num_blocks = self._problem.num_parameter_blocks
        caps: FloatArray = np.floor(boxes.high[:, None] * num_blocks / self._kinds.serve_s + _WHOLE)
        return np.minimum(caps, num_blocks)

    def _blocks(self, deadline_s: float, boxes: _Boxes, caps: FloatArray) -> FloatArray:
        """g_i of the proof, shape (num_boxes, num_kinds)."""
        kinds, order = self._kinds, self._by_link
        num_blocks = self._problem.num_parameter_blocks
        room = self._room(boxes, caps)[:, order]
        before = np.cumsum(room, axis=1) - room
        held = np.clip(num_blocks - before, 0, room) / num_blocks
        # Sum of held_j * max(link_i, link_j): links in ascending order, so a split at the own link does it.
        links = kinds.link_s[order]
        up_to = np.cumsum(held, axis=1)
        slower = np.cumsum((held * links)[:, ::-1], axis=1)[:, ::-1] - held * links
        link_s = np.empty_like(held)
        link_s[:, order] = links * up_to + slower
        served_s = served(self._problem, boxes.fewest[:, 0]) * boxes.low
        times = WorkerTimes(self._problem, kinds.block_s, served_s[:, None], link_s, kinds.most_data)
        return times.within(deadline_s).astype(np.float64)

    def _room(self, boxes: _Boxes, caps: FloatArray) -> FloatArray:
        """Most parameter blocks on the servers of each kind, shape (num_boxes, num_kinds).

        Of a class with q or more workers, the kinds with the least room lose q machines. Only the sum over a
        class matters if its links are equal; if they are not, the fastest kinds keep their room.
        """
        room = caps * self._kinds.size
        for column, members in enumerate(self._members, start=1):
            taken = boxes.fewest[:, column] * caps[:, members].min(axis=1)
            for kind in self._by_link[::-1]:
                if members[kind]:
                    lost = np.minimum(taken, room[:, kind])
                    room[:, kind] -= lost
                    taken = taken - lost
        return room

    def _most_blocks(self, deadline_s: float, boxes: _Boxes) -> FloatArray:
        """Upper bound of the data blocks done by the deadline; -1 where the servers have no room."""
        kinds = self._kinds
        caps = self._caps(boxes)
        num_blocks = self._problem.num_parameter_blocks
        blocks = self._blocks(deadline_s, boxes, caps)
        room = (caps * kinds.size).sum(axis=1) - num_blocks
        most = boxes.most[:, 0].astype(np.float64)
        mean = num_blocks / np.maximum(most, 1.0)
        fewest, number = self._limits(boxes)
        number = np.where(blocks < 1, 0, number)  # every worker completes a block
        fits = (fewest <= number).all(axis=1)
        for column, members in enumerate(self._members, start=1):
            fits &= number[:, members].sum(axis=1) >= boxes.fewest[:, column]
        least = _knapsack(blocks, np.ones_like(caps), most, fewest, number)
        for multiplier in _MULTIPLIERS:
            extra = multiplier * mean
            value = _knapsack(blocks, caps + extra[:, None], room + extra * most, fewest, number)
            least = np.minimum(least, value)
        fits &= self._room(boxes, caps).sum(axis=1) >= num_blocks
        return np.where(fits & (room >= 0), least, -1.0)

    def _limits(self, boxes: _Boxes) -> tuple[IntArray, IntArray]:
        """Fewest and most workers of each kind in each box, shape (num_boxes, num_kinds)."""
        fewest = np.zeros((len(boxes.low), len(self._kinds.size)), np.int64)
        most = np.broadcast_to(self._kinds.most_workers, fewest.shape).copy()
        for column, members in enumerate(self._members, start=1):
            most[:, members] = np.minimum(most[:, members], boxes.most[:, column, None])
            if int(members.sum()) == 1:
                fewest[:, members] = boxes.fewest[:, column, None]
        return fewest, most

    def _case(self, deadline_s: float, boxes: _Boxes) -> tuple[IntArray, IntArray]:
        caps = self._caps(boxes)
        blocks = self._blocks(deadline_s, boxes, caps)[0]
        weights = caps[0] + self._problem.num_parameter_blocks / boxes.most[0, 0]
        order = np.argsort(-blocks / weights, kind="stable")
        fewest, most = self._limits(boxes)
        most = np.where(blocks < 1, fewest, most)
        case = fewest[0].copy()
        left = int(boxes.most[0, 0] - case.sum())
        room = float(caps[0] @ (self._kinds.size - case)) - self._problem.num_parameter_blocks
        for kind in order:
            fits = int(room / caps[0][kind]) if caps[0][kind] else left
            taken = max(0, min(left, fits, int(most[0][kind] - case[kind])))
            case[kind] += taken
            left -= taken
            room -= taken * float(caps[0][kind])
        return case, order


def _classes(kinds: Kinds) -> IntArray:
    """Class of each kind, by its link: one class per speed, fastest first, if there are few speeds."""
    speeds, classes = np.unique(kinds.link_s, return_inverse=True)
    ranks: IntArray = np.asarray(classes, np.int64).reshape(-1)
    return ranks if len(speeds) <= _MOST_CLASSES else ranks * _MOST_CLASSES // len(speeds)


def _knapsack(
    values: FloatArray, weights: FloatArray, room: FloatArray, fewest: IntArray, most: IntArray
) -> FloatArray:
    """Greatest value of parts of the machines within each row's room; the fewest of a kind are in it."""
    number = most - fewest
    left = room - (weights * fewest).sum(axis=1)
    order = np.argsort(-values / np.maximum(weights, 1e-300), axis=1, kind="stable")
    sizes = np.take_along_axis(weights * number, order, axis=1)
    worth = np.take_along_axis(values * number, order, axis=1)
    before = np.cumsum(sizes, axis=1) - sizes
    parts = np.clip((left[:, None] - before) / np.maximum(sizes, 1e-300), 0.0, 1.0)
    total: FloatArray = (values * fewest).sum(axis=1) + (parts * worth).sum(axis=1)
    return np.where(left >= -_WHOLE, total, -1.0)
