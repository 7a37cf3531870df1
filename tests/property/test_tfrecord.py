"""Examples are read as TensorFlow's Protocol Buffers read them; other bytes are refused in one way."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.data.datasets.tfrecord import BYTES, FLOATS, INTEGERS, NOTHING, TFRecordError, features_of

KINDS = {"bytes_list": BYTES, "float_list": FLOATS, "int64_list": INTEGERS, None: NOTHING}

lists = st.one_of(
    st.lists(st.binary(max_size=200), max_size=4).map(
        lambda value: tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    ),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(
        lambda value: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    ),
    st.lists(st.floats(width=32), max_size=4).map(
        lambda value: tf.train.Feature(float_list=tf.train.FloatList(value=value))
    ),
    st.just(tf.train.Feature()),
)
examples = st.dictionaries(st.text(max_size=8), lists, max_size=5).map(
    lambda features: tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
)


def theirs(data: bytes) -> dict[str, tuple[int, list[Any]]]:
    parsed = tf.train.Example.FromString(data).features.feature
    return {name: (KINDS[each.WhichOneof("kind")], values_of(each)) for name, each in parsed.items()}


def values_of(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return [] if kind in (None, "float_list") else list(getattr(feature, kind).value)


def ours(data: bytes) -> dict[str, tuple[int, list[Any]]]:
    names = features_of(data)
    found = features_of(data, names)
    assert {name: feature.kind for name, feature in found.items()} == {
        name: feature.kind for name, feature in names.items()
    }
    return {
        name: (kind, [data[slice(*value)] for value in values] if kind == BYTES else values)
        for name, (kind, values) in found.items()
    }


def ours_or_refusal(data: bytes) -> object:
    try:
        return ours(data)
    except TFRecordError as error:
        return str(error)


@settings(max_examples=200, deadline=None)
@given(st.lists(examples, min_size=1, max_size=2))
def test_examples_are_read_alike_also_where_two_follow_each_other(parts: list[bytes]) -> None:
    """Messages that follow each other are one, in which later values of a name count."""
    data = b"".join(parts)
    assert ours(data) == theirs(data)


@settings(max_examples=300, deadline=None)
@given(examples, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4))
def test_changed_bytes_are_read_or_refused(data: bytes, changes: list[tuple[float, int]]) -> None:
    changed = bytearray(data)
    for place, byte in changes if data else ():
        changed[int(place * len(data))] = byte
    found = ours_or_refusal(bytes(changed))
    assert isinstance(found, dict) or found == "no tf.train.Example"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-5, 2**40), max_size=6))
def test_numbers_one_by_one_are_read_as_those_that_are_together(numbers: list[int]) -> None:
    """Writers of Protocol Buffers may do either; TensorFlow puts them together."""
    one_by_one = b"".join(b"\x08" + varint(number) for number in numbers)
    feature = message(b"\x1a", one_by_one)
    data = message(b"\x0a", message(b"\x0a", message(b"\x0a", b"label") + message(b"\x12", feature)))
    assert ours(data) == theirs(data) == {"label": (INTEGERS, numbers)}


def varint(number: int) -> bytes:
    number %= 2**64
    head = bytes([number & 0x7F | (0x80 if number > 0x7F else 0)])
    return head + varint(number >> 7) if number > 0x7F else head


def message(key: bytes, content: bytes) -> bytes:
    return key + varint(len(content)) + content
