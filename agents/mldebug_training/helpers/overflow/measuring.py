"""The smallest and largest numbers of tensors, computed on the tensors' devices and fetched all at once.

Reading one number of a GPU makes the program wait for all work queued before, so numbers are only computed here, and fetched when
the batch is over: one transfer per device and type. Their order is kept.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from contextlib import nullcontext

from mldebug_training.common.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_DEPTH = 6
MAX_LEAVES = 256  # of one value


class Extremes:
    """The extremes of one tensor: `low` <= all numbers <= `high`, `least` the smallest absolute one; NaN where the tensor has a
    NaN.

    All three are None before `Measures.fetch`, and where `note` says why there are none. `dtype` is None for a value that is no
    tensor.
    """

    __slots__ = ("dtype", "high", "least", "low", "note", "shape")

    def __init__(self, dtype: Any, shape: tuple[int, ...], note: str = "") -> None:
        self.dtype, self.shape, self.note = dtype, shape, note
        self.low: float | None = None
        self.high: float | None = None
        self.least: float | None = None

    @property
    def most(self) -> float | None:
        """The largest absolute value; NaN where any value is NaN, None where nothing was measured."""
        if self.low is None or self.high is None:
            return None
        return math.nan if math.isnan(self.low) else max(abs(self.low), abs(self.high))

    @property
    def fault(self) -> str:
        """ "nan" or "inf"; "-inf" where that is the only fault; "" for a tensor without a fault, or one not fetched yet."""
        if self.low is None or self.high is None:
            return ""
        if math.isnan(self.low) or math.isnan(self.high):
            return "nan"
        if self.high == math.inf:
            return "inf"
        return "-inf" if self.low == -math.inf else ""

    def numbers(self, low: float, high: float, least: float) -> None:
        """Set the values that were fetched from the device."""
        self.low, self.high, self.least = low, high, least


class Measures:
    """Finds the smallest and the largest number of tensors on the devices that hold them; all results are fetched later, at once. A tensor
    that was not written to since its last measurement is not measured again.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[Any, Any], list[tuple[Extremes, tuple[Any, Any, Any]]]] = {}
        self._measured: dict[int, tuple[weakref.ref[Any], int, Extremes]] = {}
        self.count = 0

    def put(self, value: Any) -> Extremes:
        """Measure a tensor; the numbers are set by the next `fetch`. A value that is no tensor gets a note. Never raises."""
        if not isinstance(value, sys.modules["torch"].Tensor):
            return Extremes(None, (), "None" if value is None else f"a {type(value).__name__}")
        try:
            return self._put(value)
        except Exception as error:
            pass_on(error)
            return Extremes(None, (), f"cannot be measured: {type(error).__name__}")

    def _put(self, tensor: Any) -> Extremes:
        before = self._measured.get(id(tensor))
        version = _version(tensor)
        if before is not None and before[0]() is tensor and before[1] == version >= 0:
            return before[2]
        found = Extremes(tensor.dtype, tuple(tensor.shape))
        self._measured[id(tensor)] = (weakref.ref(tensor), version, found)
        self._measure(tensor, found)
        return found

    def fetch(self) -> None:
        """Fetch all results from the devices and forget the tensors. For a tensor whose result cannot be fetched `note`
        says why; never raises.
        """
        waiting, self._waiting = self._waiting, {}
        self._measured = {}
        self.count = 0
        for group in waiting.values():
            try:
                _fetch(group)
            except Exception as error:  # one of them is to blame: a tensor of vmap, say
                pass_on(error)
                for one in group:
                    _fetch_alone(one)

    def _measure(self, tensor: Any, found: Extremes) -> None:
        torch = sys.modules["torch"]
        found.note = _nothing_in(tensor)
        if found.note:
            return
        with torch.no_grad(), _as_it_is(torch, tensor.device.type):
            plain = _plain(tensor.detach(), torch)
            if not plain.numel():
                found.note = "empty"
                return
            low, high = torch.aminmax(plain)
            measured = (low, high, _least(plain, torch))
        self._waiting.setdefault((low.device, low.dtype), []).append((found, measured))
        self.count += 1


def leaves(value: Any, label: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield all values (tensors, mostly) inside nested tuples, lists, dicts and dataclasses, each with a label that says
    where it is. Deeper than `MAX_DEPTH` levels nothing is unpacked; `depth`: the level of `value`.
    """
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor) or depth > MAX_DEPTH:
        yield label, value
    elif isinstance(value, dict):
        for key, one in list(value.items())[:MAX_LEAVES]:
            yield from leaves(one, f"{label}[{key!r:.40}]", depth + 1)
    elif isinstance(value, (tuple, list)):
        for place, one in enumerate(value[:MAX_LEAVES]):
            yield from leaves(one, f"{label}[{place}]", depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name, None), f"{label}.{field.name}", depth + 1)
    else:
        yield label, value


def _as_it_is(torch: Any, device: str) -> Any:
    """In the tensors' own types: autocast refuses to join float16 where it casts to bfloat16."""
    try:
        if torch.is_autocast_enabled(device):
            return torch.autocast(device, enabled=False)
    except (RuntimeError, TypeError) as error:  # a device that has none, PyTorch before 2.4
        pass_on(error)
    return nullcontext()


def _nothing_in(tensor: Any) -> str:
    """Why there are no numbers to be had; empty where there are."""
    if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor":
        return "no data (meta)"
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return "whole numbers"
    return ""


def _plain(tensor: Any, torch: Any) -> Any:
    """The same numbers as a strided tensor of this rank alone that aminmax takes. Takes part in no collective."""
    if hasattr(tensor, "to_local"):  # a DTensor: to ask all of it would be a collective
        tensor = tensor.to_local()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.element_size() == 1 else tensor


def _least(plain: Any, torch: Any) -> Any:
    """The smallest absolute number. On a CPU vector_norm takes 50 times as long; elsewhere a copy may not fit."""
    if plain.device.type == "cpu":
        return plain.abs().amin()
    return torch.linalg.vector_norm(plain, -math.inf, dtype=plain.dtype)


def _version(tensor: Any) -> int:
    try:
        return int(tensor._version)
    except Exception as error:  # made in inference mode
        pass_on(error)
        return -1


def _fetch(group: list[tuple[Extremes, tuple[Any, Any, Any]]]) -> None:
    torch = sys.modules["torch"]
    with torch.no_grad(), _as_it_is(torch, group[0][1][0].device.type):
        flat = torch.stack([one for _, measured in group for one in measured]).tolist()
    for place, (found, _) in enumerate(group):
        found.numbers(*flat[3 * place : 3 * place + 3])


def _fetch_alone(one: tuple[Extremes, tuple[Any, Any, Any]]) -> None:
    try:
        _fetch([one])
    except Exception as error:
        pass_on(error)
        one[0].note = f"cannot be measured: {type(error).__name__}"
