"""Which numbers of a capture are looked at: all that may have a fraction, and no stack for them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.capture.validation import floats_of
from mldebug.core.model import NodeCapture

RECORDED = sorted((Path(__file__).parents[2] / "fixtures/h200").rglob("*.json"))


def captures() -> Iterator[NodeCapture]:
    for file in RECORDED:
        try:
            yield msgspec.json.decode(file.read_bytes(), type=NodeCapture)
        except msgspec.DecodeError:
            continue  # another kind of recording


def all_floats(value: Any) -> Iterator[float]:
    """Of what was made of JSON, without a look at types."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from all_floats(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from all_floats(each)


def test_no_float_of_a_recorded_capture_is_left_out() -> None:
    """Defaults, which a written capture leaves out, come on top."""
    number = 0
    for capture in captures():
        expected = Counter(all_floats(msgspec.to_builtins(capture)))
        assert not expected - Counter(floats_of(capture))
        number += expected.total()
    assert number > 5000


class Inner(msgspec.Struct, frozen=True):
    text: str = ""
    later: "tuple[Inner, ...]" = ()
    ratio: float = 0.5


class Outer(msgspec.Struct, frozen=True):
    union: int | Inner | None = None
    by_name: dict[str, list[Inner]] = {}
    anything: Any = None
    words: dict[str, tuple[str, ...]] = {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Outer(union=Inner(ratio=2.5)), [2.5]),
        (Outer(by_name={"a": [Inner(ratio=1.5), Inner(ratio=3.5)]}), [1.5, 3.5]),
        (Inner(later=(Inner(ratio=7.5, later=(Inner(ratio=8.5),)),)), [0.5, 7.5, 8.5]),
        (Outer(anything={"x": (1e300, 2, "3.0")}), [1e300]),
        (Outer(words={"pi": ("3.14",)}), []),
    ],
    ids=["union", "dict of lists", "a struct in itself", "anything", "words"],
)
def test_floats_of_each_shape(value: msgspec.Struct, expected: list[float]) -> None:
    assert sorted(floats_of(value)) == expected
