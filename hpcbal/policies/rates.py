"""Know how fast each DNN trains on m slots, and save that between runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError

# Each added slot is assumed to keep this share of the per-slot rate when only one slot was measured: 1.9x on
# 2 slots, 3.4x on 4, 5.6x on 8, the usual range of synchronous data-parallel training.
ASSUMED_EFFICIENCY_PER_ADDED_SLOT = 0.95

CACHED_RATES = 2**16
"""Rates that are computed together: few enough that they, and what leads to them, fit into a core's cache."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RateTable:
    """Training rates r_i(m) of an ensemble.

    Rates of measured counts are returned as measured. For other counts the per-slot rate r(m)/m follows a
    geometric law, as in [FLEET] Eq. 5:

        r(m) = m * r(b)/b * e**(m - b),  e = ((r(b)/b) / (r(a)/a)) ** (1/(b - a))

    With b = M_b = 2*slots_per_node and a = M_b - 1 this is exactly Eq. 5.

    Deviations from Eq. 5:
      - If M_b was not measured (a small allocation, `max_slots`), b is the largest measured count; if
        M_b - 1 was not, a is the next measured count below b.
      - A count between two measured ones is interpolated by the same law between these two.
      - e is at most 1 beyond the measured counts. A noisy measurement that looks superlinear would
        otherwise grow exponentially with m and draw whole flotillas onto one DNN.
      - If only m = 1 was measured, e is `ASSUMED_EFFICIENCY_PER_ADDED_SLOT`. Linear scaling (e = 1) would be
        too optimistic: gradients must be exchanged ([FLEET] Principle 2), and with linear scaling the best
        plan is one DNN after another on all slots (footnote 3), so an unmeasured DNN would appear to keep up
        with any reference rate.

    Attributes:
        measured: samples/s by number of slots by DNN; counts >= 1, rates finite and > 0. May be partial (it
            is filled during profiling), but rates of a DNN are available only once m = 1 is measured.
        slots_per_node: slots per node of the cluster, >= 1; the largest number if nodes differ.

    Raises:
        PolicyError: if a count, a rate or `slots_per_node` is out of range.
    Source: [FLEET] App. B.3, Eq. 5.
    """

    measured: Mapping[str, Mapping[int, float]]
    slots_per_node: int
    # Rates that `rate` has estimated; a simulated run asks for the same ones in every pass.
    _estimated: dict[tuple[str, int], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.slots_per_node < 1:
            raise PolicyError(f"slots_per_node: got {self.slots_per_node}, allowed: 1 or more")
        copy: dict[str, dict[int, float]] = {}
        for dnn_id, rate_by_count in self.measured.items():
            for num_slots, rate in rate_by_count.items():
                _check_measurement(dnn_id, num_slots, rate)
            copy[dnn_id] = {int(m): float(rate_by_count[m]) for m in sorted(rate_by_count)}
        object.__setattr__(self, "measured", copy)

    def with_measurement(self, dnn_id: str, num_slots: int, samples_per_s: float) -> RateTable:
        """The table plus one measurement, which replaces one of the same DNN and count."""
        measured = dict(self.measured)
        measured[dnn_id] = {**measured.get(dnn_id, {}), num_slots: samples_per_s}
        return RateTable(measured, self.slots_per_node)

    def is_measured(self, dnn_id: str, num_slots: int) -> bool:
        """Whether this rate has been measured."""
        return num_slots in self.measured.get(dnn_id, {})

    def rate(self, dnn_id: str, num_slots: int) -> float:
        """Samples per second of `dnn_id` trained on `num_slots` >= 1 slots.

        Raises:
            PolicyError: if the DNN has no measurement on one slot, or `num_slots` < 1.
        """
        if num_slots < 1:
            raise PolicyError(f"rate of {dnn_id!r} on {num_slots} slots was requested; allowed: 1 or more")
        rate_by_count = self._rate_by_count(dnn_id)
        rate = rate_by_count.get(num_slots) or self._estimated.get((dnn_id, num_slots))
        if rate is None:
            counts = np.array([num_slots], dtype=np.int64)
            rate = float(self._rates([rate_by_count], tuple(rate_by_count), counts)[0, 0])
            self._estimated[dnn_id, num_slots] = rate
        return rate

    def matrix(self, dnn_ids: Sequence[str], max_slots: int) -> FloatArray:
        """Rates in samples/s, shape (len(dnn_ids), max_slots); column m - 1 holds the rates on m slots."""
        counts = np.arange(1, max_slots + 1, dtype=np.int64)
        rates = np.empty((len(dnn_ids), max_slots), dtype=np.float64)
        rows_by_known: dict[tuple[int, ...], list[int]] = {}
        for row, dnn_id in enumerate(dnn_ids):
            rows_by_known.setdefault(tuple(self._rate_by_count(dnn_id)), []).append(row)
        num_rows = max(1, CACHED_RATES // max_slots)
        for known, rows in rows_by_known.items():
            for first in range(0, len(rows), num_rows):
                some = rows[first : first + num_rows]
                rates[some] = self._rates([self.measured[dnn_ids[row]] for row in some], known, counts)
        return rates

    def _rate_by_count(self, dnn_id: str) -> Mapping[int, float]:
        """Return the measured rates of a DNN by number of slots, ascending; 1 slot is among them."""
        rate_by_count = self.measured.get(dnn_id, {})
        if 1 not in rate_by_count:
            raise PolicyError(
                f"no rate for {dnn_id!r} on 1 slot is known (known: {sorted(rate_by_count)}); "
                "profile it, or give it in the rate table"
            )
        return rate_by_count

    def _rates(
        self, measured: Sequence[Mapping[int, float]], known: Sequence[int], counts: npt.NDArray[np.int64]
    ) -> FloatArray:
        """Rates on `counts` slots, any order, of DNNs that were measured on the same counts `known`.

        All of them together: one call of numpy per DNN would take most of the time of a plan.

        Returns: shape (len(measured), len(counts)).
        """
        base = self._base(known)
        measured_on = np.array(known, dtype=np.int64)
        rates = np.array([list(rate_by_count.values()) for rate_by_count in measured], dtype=np.float64)
        per_slot = rates / measured_on  # (num_dnns, len(known))
        decay = np.empty_like(rates)  # of the per-slot rate per added slot, from each measured count on
        decay[:, :-1] = (per_slot[:, 1:] / per_slot[:, :-1]) ** (1.0 / np.diff(measured_on))
        decay[:, -1] = [self._efficiency(rate_by_count, known) for rate_by_count in measured]
        # Base every count on the measured one at or below it; counts beyond the last use `base`.
        anchor = np.searchsorted(measured_on, counts, side="right") - 1
        start = np.where(counts > known[-1], known.index(base), anchor)
        added = (counts - measured_on[start]).astype(np.float64)
        estimated: FloatArray = counts * per_slot[:, start] * decay[:, anchor] ** added
        return np.where(measured_on[anchor] == counts, rates[:, anchor], estimated)

    def _base(self, known: Sequence[int]) -> int:
        """Return b of the class docstring: rates beyond the measured counts are computed from that on b."""
        preferred = 2 * self.slots_per_node
        return preferred if preferred in known and len(known) > 1 else known[-1]

    def _efficiency(self, rate_by_count: Mapping[int, float], known: Sequence[int]) -> float:
        """Return e of the class docstring: the factor on the rate per slot for each added slot, at most 1."""
        if len(known) == 1:
            return ASSUMED_EFFICIENCY_PER_ADDED_SLOT
        base = self._base(known)
        below = known[known.index(base) - 1]
        ratio = (rate_by_count[base] / base) / (rate_by_count[below] / below)
        efficiency: float = ratio ** (1.0 / (base - below))
        return min(1.0, efficiency)


def profiling_counts(
    single_slot_rates: Iterable[float], slots_per_node: int, num_slots: int, max_slots: int | None = None
) -> tuple[int, ...]:
    """Numbers of slots on which every DNN is profiled: 1..M_t.

    M_t = max(M_a, M_b): on M_a slots the slowest DNN would reach the fastest one's single-slot rate if it
    scaled linearly, and M_b = 2*slots_per_node shows the cost of crossing nodes.

    Args:
        single_slot_rates: samples/s of each DNN on one slot, > 0.
        slots_per_node: >= 1.
        num_slots: slots of the allocation, >= 1.
        max_slots: the user's cap on profiling, >= 1.

    Returns: 1, 2, ..., M_t.
    Raises: PolicyError: if there are no rates, or an argument is out of range.
    Source: [FLEET] App. B.3. Deviation: `num_slots` and `max_slots` limit M_t; the paper assumes M_t < M.
    """
    rates = list(single_slot_rates)
    if not rates:
        raise PolicyError("profiling was requested without a single rate; profile every DNN on 1 slot first")
    for rate in rates:
        _check_measurement("a DNN", 1, rate)
    for name, value in (
        ("slots_per_node", slots_per_node),
        ("num_slots", num_slots),
        ("max_slots", max_slots),
    ):
        if value is not None and value < 1:
            raise PolicyError(f"{name}: got {value}, allowed: 1 or more")
    limit = num_slots if max_slots is None else min(num_slots, max_slots)
    if max(rates) / min(rates) >= limit:  # also if the quotient is too large for an int
        return tuple(range(1, limit + 1))
    needed = max(math.ceil(max(rates) / min(rates)), 2 * slots_per_node)
    return tuple(range(1, min(needed, limit) + 1))


def rate_key(
    *,
    model: str,
    args: Mapping[str, object],
    optimizer: Mapping[str, object],
    batch_size: int,
    sample_shape: Sequence[object],
    num_classes: int,
    device: str,
    accumulate: int = 1,
    compile: bool = False,
    augment: Sequence[object] = (),
) -> str:
    """Identify what a DNN's rates depend on, so that saved measurements are reused only where valid.

    Args:
        model: import path `package.module:callable`.
        args: the model's arguments; plain values as in YAML.
        optimizer: the optimizer's fields; plain values as in YAML.
        batch_size: samples per global batch.
        sample_shape: shape of one preprocessed sample, None where it varies; or name and shape of each of its
            arrays.
        num_classes: size of the output layer.
        device: the backend's name for its accelerator, including the precision.
        accumulate: slices in which a slot computes its share of a step.
        compile: whether the network is compiled.
        augment: operations on its own samples; plain values as in YAML.

    Returns: 16 hexadecimal digits; the same on every machine and for any order of keys.
    Raises: PolicyError: if an argument contains anything but plain values.
    """
    fields = {
        "model": model,
        "args": dict(args),
        "optimizer": dict(optimizer),
        "batch_size": batch_size,
        "sample_shape": list(sample_shape),
        "num_classes": num_classes,
        "device": device,
    }
    if accumulate > 1:
        fields["accumulate"] = accumulate
    if compile:
        fields["compile"] = True
    if augment:
        fields["augment"] = list(augment)
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    except TypeError as error:
        raise PolicyError(f"rates of {model} cannot be saved: {error}; use plain values in args") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_measurement(dnn_id: str, num_slots: int, samples_per_s: float) -> None:
    if isinstance(num_slots, bool) or not isinstance(num_slots, int | np.integer) or num_slots < 1:
        raise PolicyError(f"rates of {dnn_id!r}: number of slots: got {num_slots!r}, allowed: 1, 2, ...")
    if not (math.isfinite(samples_per_s) and samples_per_s > 0):
        raise PolicyError(
            f"rate of {dnn_id!r} on {num_slots} slots: got {samples_per_s!r} samples/s, allowed: above 0"
        )


FORMAT = 1


def profile_to_dict(
    table: RateTable,
    key_by_dnn: Mapping[str, str],
    previous: Mapping[str, Any] | None = None,
    start_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The content of `profile.json`: measured rates by `rate_key`, and the times to start the networks.

    Args:
        table: measured rates; DNNs without a measurement are left out.
        key_by_dnn: `rate_key` of each DNN in the table. DNNs with the same key share one entry, which has
            the names of all; if both measured the same count, the later one in the table wins.
        previous: content of an older profile: its entries stay, except for counts that were measured again.
        start_s: seconds from the start of a round to the first step, for DNNs where it was measured.

    Returns: a dict for JSON; the entries written last come last.
    Raises: PolicyError: if `previous` is not a profile, or a DNN has no key.
    """
    entries: dict[str, Any] = dict(_entries(previous)) if previous is not None else {}
    for dnn_id, rate_by_count in table.measured.items():
        if not rate_by_count:
            continue
        if dnn_id not in key_by_dnn:
            raise PolicyError(f"the rates of {dnn_id!r} cannot be saved: it has no rate key; give one")
        key = key_by_dnn[dnn_id]
        before = entries.pop(key, None)
        kept = _rates_for(before, key, table.slots_per_node)
        kept.update(rate_by_count)
        names = {
            **dict.fromkeys(_names_in(before), key),
            **key_by_dnn,
        }  # a DNN that has changed left the entry
        others = sorted(name for name, each in names.items() if each == key and name != dnn_id)
        entries[key] = {
            "dnn": dnn_id,
            **({"also": others} if others else {}),
            "slots_per_node": table.slots_per_node,
            "samples_per_s": {str(m): kept[m] for m in sorted(kept)},
        }
        start = (start_s or {}).get(dnn_id, _start_of(before))
        if start is not None:
            entries[key]["start_s"] = start
    return {"format": FORMAT, "entries": entries}


def profile_from_dict(
    profile: Mapping[str, Any], key_by_dnn: Mapping[str, str], slots_per_node: int
) -> RateTable:
    """The saved rates that are valid for these DNNs on nodes with `slots_per_node` slots.

    Rates measured on nodes of another size are valid only for groups that fit into one node of either size;
    others are left out, to be measured again or estimated.

    Args:
        profile: what `profile_to_dict` returned, possibly through JSON.
        key_by_dnn: `rate_key` of each requested DNN; DNNs without an entry are left out.
        slots_per_node: slots per node of the present cluster, >= 1.

    Raises: PolicyError: if `profile` is not a profile.
    """
    entries = _entries(profile)
    found = {
        dnn_id: _rates_for(entries[key], key, slots_per_node)
        for dnn_id, key in key_by_dnn.items()
        if key in entries
    }
    return RateTable({dnn_id: rates for dnn_id, rates in found.items() if rates}, slots_per_node)


def profile_by_name(profile: Mapping[str, Any], dnn_ids: Iterable[str], slots_per_node: int) -> RateTable:
    """Rates by DNN name, for a plan that does not open the data.

    If several entries have one name, the last one written counts. Unlike `profile_from_dict`, this does not
    check whether model, batch size, data and device are still the same.
    """
    return profile_from_dict(profile, _keys_by_name(profile, dnn_ids), slots_per_node)


def _keys_by_name(profile: Mapping[str, Any], dnn_ids: Iterable[str]) -> dict[str, str]:
    entries = _entries(profile)
    key_by_name = {name: key for key, entry in entries.items() for name in _names_in(entry)}
    return {dnn_id: key_by_name[dnn_id] for dnn_id in dnn_ids if dnn_id in key_by_name}


def _names_in(entry: object) -> tuple[str, ...]:
    """The names of the DNNs that an entry is for: the last one that was measured, and those with its key."""
    if not isinstance(entry, Mapping):
        return ()
    also = entry.get("also", ())
    return (str(entry.get("dnn")), *(map(str, also) if isinstance(also, list | tuple) else ()))


def starts_from_dict(profile: Mapping[str, Any], key_by_dnn: Mapping[str, str]) -> dict[str, float]:
    """Seconds to start a network, by DNN, for DNNs in the profile.

    Arguments and errors as for `profile_from_dict`.
    """
    entries = _entries(profile)
    starts = {dnn_id: _start_of(entries.get(key)) for dnn_id, key in key_by_dnn.items()}
    return {dnn_id: start for dnn_id, start in starts.items() if start is not None}


def starts_by_name(profile: Mapping[str, Any], dnn_ids: Iterable[str]) -> dict[str, float]:
    """Seconds to start networks by DNN name, like the rates of `profile_by_name`."""
    return starts_from_dict(profile, _keys_by_name(profile, dnn_ids))


def _start_of(entry: object) -> float | None:
    start = entry.get("start_s") if isinstance(entry, Mapping) else None
    if start is None:
        return None
    if not isinstance(start, int | float) or isinstance(start, bool) or not 0.0 <= start < math.inf:
        raise PolicyError(f"profile: start_s: got {start!r}, allowed: seconds, 0 or more; remove the file")
    return float(start)


def _entries(profile: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(profile, Mapping) or not isinstance(profile.get("entries"), Mapping):
        raise PolicyError("this is not a profile: it has no map 'entries'; remove the file to measure again")
    if profile.get("format") != FORMAT:
        raise PolicyError(
            f"profile has format {profile.get('format')!r}, this version reads {FORMAT}; "
            "remove the file to measure again"
        )
    entries: Mapping[str, Any] = profile["entries"]
    return entries


def _rates_for(entry: object, key: str, slots_per_node: int) -> dict[int, float]:
    """An entry's rates that are valid on nodes of this size, by number of slots; empty without an entry."""
    if entry is None:
        return {}
    try:
        if not isinstance(entry, Mapping):
            raise TypeError(f"got {entry!r}")
        measured_on = int(entry["slots_per_node"])
        rates = {int(m): float(rate) for m, rate in entry["samples_per_s"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PolicyError(
            f"profile entry {key}: needs dnn, slots_per_node and a map samples_per_s ({error}); "
            "remove the entry to measure again"
        ) from error
    if measured_on == slots_per_node:
        return rates
    return {m: rate for m, rate in rates.items() if m <= min(measured_on, slots_per_node)}
