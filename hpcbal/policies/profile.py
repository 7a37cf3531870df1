"""Save measured rates between runs, as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hpcbal.errors import PolicyError
from hpcbal.policies.rates import RateTable

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
        key_by_dnn: `rate_key` of each DNN in the table. DNNs with the same key share one entry; if both
            measured the same count, the later one in the table wins.
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
        kept = _rates_for(before, key, table.gpus_per_node)
        kept.update(rate_by_count)
        entries[key] = {
            "dnn": dnn_id,
            "gpus_per_node": table.gpus_per_node,
            "samples_per_s": {str(m): kept[m] for m in sorted(kept)},
        }
        start = (start_s or {}).get(dnn_id, _start_of(before))
        if start is not None:
            entries[key]["start_s"] = start
    return {"format": FORMAT, "entries": entries}


def profile_from_dict(
    profile: Mapping[str, Any], key_by_dnn: Mapping[str, str], gpus_per_node: int
) -> RateTable:
    """The saved rates that are valid for these DNNs on nodes with `gpus_per_node` GPUs.

    Rates measured on nodes of another size are valid only for groups that fit into one node of either size;
    others are left out, to be measured again or estimated.

    Args:
        profile: what `profile_to_dict` returned, possibly through JSON.
        key_by_dnn: `rate_key` of each requested DNN; DNNs without an entry are left out.
        gpus_per_node: GPUs per node of the present cluster, >= 1.

    Raises: PolicyError: if `profile` is not a profile.
    """
    entries = _entries(profile)
    found = {
        dnn_id: _rates_for(entries[key], key, gpus_per_node)
        for dnn_id, key in key_by_dnn.items()
        if key in entries
    }
    return RateTable({dnn_id: rates for dnn_id, rates in found.items() if rates}, gpus_per_node)


def profile_by_name(profile: Mapping[str, Any], dnn_ids: Iterable[str], gpus_per_node: int) -> RateTable:
    """Rates by DNN name, for a plan that does not open the data.

    If several entries have one name, the last one written counts. Unlike `profile_from_dict`, this does not
    check whether model, batch size, data and device are still the same.
    """
    return profile_from_dict(profile, _keys_by_name(profile, dnn_ids), gpus_per_node)


def _keys_by_name(profile: Mapping[str, Any], dnn_ids: Iterable[str]) -> dict[str, str]:
    entries = _entries(profile)
    key_by_name = {str(entry.get("dnn")): key for key, entry in entries.items() if isinstance(entry, Mapping)}
    return {dnn_id: key_by_name[dnn_id] for dnn_id in dnn_ids if dnn_id in key_by_name}


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


def _rates_for(entry: object, key: str, gpus_per_node: int) -> dict[int, float]:
    """An entry's rates that are valid on nodes of this size, by number of GPUs; empty without an entry."""
    if entry is None:
        return {}
    try:
        if not isinstance(entry, Mapping):
            raise TypeError(f"got {entry!r}")
        measured_on = int(entry["gpus_per_node"])
        rates = {int(m): float(rate) for m, rate in entry["samples_per_s"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PolicyError(
            f"profile entry {key}: needs dnn, gpus_per_node and a map samples_per_s ({error}); "
            "remove the entry to measure again"
        ) from error
    if measured_on == gpus_per_node:
        return rates
    return {m: rate for m, rate in rates.items() if m <= min(measured_on, gpus_per_node)}
