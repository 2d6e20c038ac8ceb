"""Arrow columns as JSON text: the text that Python's json has for the same values."""

import json
import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds_core import EncodeError
from mds_core.json_text import json_texts, plain_type

LEAVES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(),
    pa.large_string(): st.text(),
}


def typed(kind: pa.DataType, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[pa.DataType, Any]]:
    return st.just((kind, st.none() | values))


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def lists(of: Any) -> Any:
        kind, values = of
        return st.sampled_from([pa.list_(kind), pa.large_list(kind)]).flatmap(
            lambda list_kind: typed(list_kind, st.lists(values, max_size=3))
        )

    def structs(of: Any) -> Any:
        fields = {f'{i}"é': one for i, one in enumerate(of)}
        kind = pa.struct([(name, one[0]) for name, one in fields.items()])
        return typed(kind, st.fixed_dictionaries({name: one[1] for name, one in fields.items()}))

    return inner.flatmap(lists) | st.lists(inner, max_size=3).flatmap(structs)


TYPES = st.recursive(
    st.sampled_from(list(LEAVES)).flatmap(lambda kind: typed(kind, LEAVES[kind])), nested, max_leaves=5
)


@given(TYPES.flatmap(lambda one: st.tuples(st.just(one[0]), st.lists(one[1], max_size=5))), st.integers(0, 3))
def test_the_text_of_a_value_is_what_json_dumps_gives(drawn: tuple[pa.DataType, list[Any]], skipped: int) -> None:
    kind, values = drawn
    column = pa.array(values, kind)[skipped:]
    assert json_texts(column).to_pylist() == [json.dumps(value) for value in column.to_pylist()]


def test_maps_are_objects_where_their_keys_are_text() -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.int32()))
    column = pa.array([[("x", [9])], [("a", [1, None]), ("é", None)], None, []], kind)[1:]
    assert json_texts(column).to_pylist() == ['{"a": [1, null], "\\u00e9": null}', "null", "{}"]


def test_maps_of_other_keys_are_lists_of_pairs() -> None:
    column = pa.array([[(1, "x"), (2, None)], None, []], pa.map_(pa.int64(), pa.string()))
    assert json_texts(column).to_pylist() == ['[[1, "x"], [2, null]]', "null", "[]"]


STAND_INS = [
    (pa.array([date(1970, 1, 2), date(1, 1, 1)]), ["1", "-719162"]),
    (pa.array([datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("us", "UTC")), ["1000000"]),
    (pa.array([timedelta(seconds=-1)], pa.duration("us")), ["-1000000"]),
    (pa.array([Decimal("-0.50"), None]), ['"-0.50"', "null"]),
    (pa.array([b"\x00\xff", b""]), ['"AP8="', '""']),
    (pa.array([[date(1970, 1, 2)], [None]]), ["[1]", "[null]"]),
    (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))[1:], ["[3, 4]"]),
    (pa.array([{}, None], pa.struct([])), ["{}", "null"]),
    (pa.nulls(2), ["null", "null"]),
    (pa.array([], pa.list_(pa.int8())), []),
]


@pytest.mark.parametrize(("column", "texts"), STAND_INS, ids=lambda value: str(getattr(value, "type", "")))
def test_what_json_has_no_value_for_is_as_in_a_column_of_its_own(column: pa.Array, texts: list[str]) -> None:
    assert json_texts(column).to_pylist() == texts
    plain = plain_type(column.type)
    assert not pa.types.is_temporal(plain)


def test_floats_that_are_no_numbers_keep_pythons_names() -> None:
    assert json_texts(pa.array([math.nan, math.inf, -math.inf])).to_pylist() == ["NaN", "Infinity", "-Infinity"]


def test_a_type_that_has_no_json_is_refused() -> None:
    with pytest.raises(EncodeError, match="found the Arrow type month_day_nano_interval"):
        json_texts(pa.array([(1, 2, 3)], pa.month_day_nano_interval()))
