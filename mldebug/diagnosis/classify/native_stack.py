"""What the native frames of a rank's thread say: a communication library, the GPU, the interpreter's lock, or code of its own."""

import re
from dataclasses import replace

from mldebug.core.model import Classification, Frame
from mldebug.diagnosis.classify.awaited.threads import gil_holder, holder_words
from mldebug.diagnosis.classify.kernel_state import from_sign, inert
from mldebug.diagnosis.classify.process_facts import ProcessFacts, native_words
from mldebug.diagnosis.classify.tables.native_calls import (
    BY_NAME,
    C_LIBRARY,
    MAY_WAIT_FOR_OTHERS,
    NATIVE,
    OPERATIONS,
)
from mldebug.diagnosis.classify.tables.signs import NameSign


def native_sign(process: ProcessFacts) -> tuple[NameSign, str] | None:
    """The table row for the innermost known native function that the innermost Python frame called, and that function's name; None where there is none."""
    if process.native is None:
        return None
    for frame in process.native.frames:
        if not frame.native:
            return None
        for row in NATIVE:
            if row.pattern.fullmatch(frame.function):
                return row, frame.function
    return None


def by_native(process: ProcessFacts) -> Classification | None:
    found = native_sign(process)
    if found is None or process.native is None:
        return None
    sign, function = found
    if sign.name == "gil":
        return gil(process)
    fact = f"native stack: {native_words(process.native.frames, function)}"
    if sign.operation == BY_NAME:
        sign = replace(sign, operation=_operation(process.native.frames))
    return from_sign(process, sign, fact, direct=True)


def _operation(frames: tuple[Frame, ...]) -> str:
    """The collective that the frames of gloo or XLA are of; "" where none of them says."""
    names = (name for frame in frames if frame.native for name, one in OPERATIONS if one.fullmatch(frame.function))  # fmt: skip
    return next(names, "")


def gil(process: ProcessFacts, fact: str = "native stack: take_gil") -> Classification:
    holder = gil_holder(process.capture)
    who = f", held by {holder_words(holder)}" if holder else ""
    return inert(process, "gil", f"waits for the GIL in {process.at}{who}", fact)


def own_wait(process: ProcessFacts) -> Classification | None:
    """The class of a thread that sleeps on a futex in native code of the job (not of a communication, GPU or runtime library); else None.

    What it waits for is not known, but it is no other rank of the job: an extension's own queue,
    lock or thread.
    """
    if process.native is None or not process.on_futex or process.computes or not process.asleep:
        return None
    frames = _below_python(process.native.frames)
    if not frames or any(map(_may_wait_for_others, frames)):
        return None
    own = next((frame for frame in frames if not C_LIBRARY.fullmatch(frame.file)), None)
    if own is None or own.function.startswith("0x"):
        return None
    words = f"waits in native code of its own ({own.function}, {own.file}) in {process.at}"
    fact = f"native stack: {native_words(process.native.frames, own.function)}"
    return inert(process, "native_lock", words, fact)


def _below_python(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The native frames that the innermost Python frame has called; none where the stack ends before one."""
    for index, frame in enumerate(frames):
        if not frame.native:
            return frames[:index]
    return ()


def _may_wait_for_others(frame: Frame) -> bool:
    name = re.split(r"[/\\]", frame.file)[-1]
    return bool(MAY_WAIT_FOR_OTHERS.match(frame.function) or MAY_WAIT_FOR_OTHERS.match(name))
