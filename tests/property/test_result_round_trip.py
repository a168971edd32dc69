"""Whatever a run can find survives JSON: written, read back, equal."""

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtune.records.result import Result
from loadtune.store import as_json

_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**53), 2**53),  # beyond it other readers of JSON round
    float: st.floats(allow_nan=False, allow_infinity=False),  # records have None for what is missing
    str: st.text(max_size=5),
    type(None): st.none(),
}


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Every field is drawn, those with defaults too, which hypothesis alone would leave alone."""
    if dataclasses.is_dataclass(hint):
        fields = {name: st.deferred(lambda h=inner: any_of(h)) for name, inner in get_type_hints(hint).items()}
        return st.builds(hint, **fields)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, types.UnionType):
        return st.one_of([any_of(one) for one in inner])
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(any_of(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(any_of, inner))
    if origin is dict:
        return st.dictionaries(any_of(inner[0]), any_of(inner[1]), max_size=2)
    return _PLAIN[hint]


# Large records from few bytes each: hypothesis calls that slow, and it is what is wanted here.
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_of(Result))
def test_a_result_survives_json(result: Result) -> None:
    assert msgspec.json.decode(as_json(result), type=Result) == result
