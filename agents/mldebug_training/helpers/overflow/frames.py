"""One call of one module as numbers, what is wrong with it, and the table that a report shows of several."""

from __future__ import annotations

import sys
from typing import NamedTuple

from mldebug_training.helpers.overflow.measuring import Extremes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

UNDERFLOW = "underflow"


class TensorRow(NamedTuple):
    """The measured extremes of one tensor in a module's call, or why there are none."""

    role: str  # weight, buffer, input, output or gradient
    label: str
    numbers: Extremes


class ModuleCall(NamedTuple):
    """One call of one module. Its rows are in the order in which a fault spreads: weights, inputs, outputs."""

    name: str
    kind: str  # class of the module
    call: int  # of this module in this batch, from 1
    rows: Sequence[TensorRow]
    backward: bool = False

    @property
    def title(self) -> str:
        """The call as a report names it: `encoder.0 (Linear, call 2, backward)`."""
        again = f", call {self.call}" if self.call > 1 else ""
        return f"{self.name} ({self.kind}{again}{', backward' if self.backward else ''})"


class TensorFault(NamedTuple):
    """The first tensor of a batch with a fault; `what` is nan, inf, -inf or underflow."""

    frame: ModuleCall
    row: TensorRow
    what: str


def fault_of(frame: ModuleCall) -> TensorFault | None:
    """The first tensor with inf or nan in this call; None where there is none. Minus infinity in an input or buffer is a mask
    and no fault, nor is it in an output then.
    """
    masked = False
    for row in frame.rows:
        what = row.numbers.fault
        if what == "-inf" and (
            row.role in ("input", "buffer") or (row.role == "output" and masked)
        ):
            masked = True
        elif what:
            return TensorFault(frame, row, what)
    return None


def underflow_of(frame: ModuleCall) -> TensorFault | None:
    """The tensor of a call where numbers are lost because they are too small for the type that the call computes in;
    None where none is.

    All numbers of that tensor but zeros are below the type's smallest normal one; or, in float16 only, all outputs
    are zero although no weight and no input is. The type is the narrowest of the tensors, as autocast keeps 32-bit
    weights and computes with 16 bits; 8-bit types have separate scales and are ignored. Buffers are not judged.
    """
    wide = [row for row in frame.rows if _tiny(row.numbers.dtype)]
    if not wide:
        return None
    tiny = max(_tiny(row.numbers.dtype) for row in wide)
    for row in wide:
        if row.role != "buffer" and 0 < _most(row) < tiny:
            return TensorFault(frame, row, UNDERFLOW)
    return _lost(frame, wide) if tiny > 1e-6 else None


def _lost(frame: ModuleCall, wide: list[TensorRow]) -> TensorFault | None:
    """Numbers went in, no weight is zero altogether, and nothing but zeros came out."""
    ins = [row for row in wide if row.role in ("weight", "input")]
    outs = [row for row in wide if row.role == "output"]
    weighed = {row.role for row in ins} == {"weight", "input"} and all(
        _most(row) > 0 for row in ins
    )
    if weighed and outs and all(row.numbers.most == 0 for row in outs):
        return TensorFault(frame, outs[0], UNDERFLOW)
    return None


def sentence(fault: TensorFault) -> str:
    """Where a fault began and what it means, in one sentence."""
    return f"{fault.what} first in {fault.row.label} of {fault.frame.title}: {_meaning(fault)}"


def render(frames: Iterable[ModuleCall]) -> str:
    """The frames as a table, one row per tensor."""
    lines = ["abs min  abs max"]
    for frame in frames:
        small = underflow_of(frame)
        lines.append(f"                  {frame.title}")
        lines.extend(_line(row, small is not None and small.row is row) for row in frame.rows)
    return "\n".join(lines)


def _line(row: TensorRow, small: bool) -> str:
    numbers = row.numbers
    if numbers.dtype is None:
        return f"{'-':>17} {row.label}: {numbers.note}"
    about = f"{row.label}  {str(numbers.dtype).replace('torch.', '')} {list(numbers.shape)}"
    if numbers.most is None or numbers.least is None:
        return f"{'-':>17} {about} {numbers.note}"
    mark = numbers.fault or (UNDERFLOW if small else "")
    return f"{numbers.least:8.2e} {numbers.most:8.2e} {about} {mark}".rstrip()


def _meaning(fault: TensorFault) -> str:
    if fault.what == UNDERFLOW:
        return "what is in it is too small for the type that this module computes in"
    if fault.row.role == "gradient":
        return "it came back so; with a scaled loss that is how the scale is found"
    if fault.row.role in ("weight", "buffer"):
        return "it was so before this call: by the last optimizer step, or as it was loaded"
    if fault.row.role == "input":
        return "it came in so: from the data, or from a calculation outside all modules"
    return _made_inside(fault)


def _made_inside(fault: TensorFault) -> str:
    ins = [row for row in fault.frame.rows if row.role == "input"]
    if any(row.numbers.fault for row in ins):
        return "an input holds -inf, as masks do; where all of a row is masked, softmax gives nan"
    ends = sys.modules["torch"].finfo(fault.row.numbers.dtype).max
    most = max(map(_most, ins), default=0.0)
    return f"weights and inputs were finite, inputs up to {most:.2e}; {_name(fault)} ends at {ends:.2e}"


def _name(fault: TensorFault) -> str:
    return str(fault.row.numbers.dtype).replace("torch.", "")


def _most(row: TensorRow) -> float:
    return row.numbers.most or 0.0


def _tiny(dtype: Any) -> float:
    """The smallest normal number of a floating type of 16 bits and more; 0 for others."""
    try:
        about = sys.modules["torch"].finfo(dtype)
        return float(about.tiny) if about.bits >= 16 else 0.0
    except TypeError:
        return 0.0
