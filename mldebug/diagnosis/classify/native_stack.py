"""What the native frames of a rank's thread say: a communication library, the GPU, the interpreter's lock, or code of its own."""

import re
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from mldebug.capture.frames import inner, python_frames, site
from mldebug.core.model import Classification, Frame, Role, ThreadStack
from mldebug.diagnosis.classify.awaited.threads import gil_holder, holder_words
from mldebug.diagnosis.classify.kernel_state import from_sign, inert
from mldebug.diagnosis.classify.process_facts import ProcessFacts, activity, native_words
from mldebug.diagnosis.classify.tables.matching import match_calls
from mldebug.diagnosis.classify.tables.native_calls import (
    BEGINS,
    BY_NAME,
    C_LIBRARY,
    FILE_CALLS,
    INTERPRETER,
    LOCKS,
    MAY_WAIT_FOR_OTHERS,
    NATIVE,
    OF_GPUS,
    OPERATIONS,
    SLEEPS,
    STREAM_CALLS,
    STREAMS,
    SYSTEM_CALLS,
    TRANSFERS,
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
    """The class of a thread that sleeps in native code of the job (not of a communication, GPU or runtime library); else None.

    What it waits for is not known, but it is no other rank of the job: an extension's own queue, lock
    or thread, or a file. Evidence that it sleeps is its state in
    the kernel (a futex); in a stack that another tool dumped it is the innermost function.
    """
    if process.native is None or process.computes or not process.asleep:
        return None
    frames = _below_python(process.native.frames)
    if not frames or any(map(_may_wait_for_others, frames)):
        return None
    name = "native_lock" if process.on_futex else _sleep_of(process, frames)
    if not name or any(map(_waits_for_others, (*process.capture.native, *process.capture.stacks))):
        return None
    own = next((frame for frame in frames if not _tells_nothing(frame)), None)
    if own is None and (process.on_futex or LOCKS.fullmatch(frames[0].function)):
        return None
    if own is not None and own.function.startswith("0x"):
        return None
    decides = own.function if own else frames[0].function
    fact = f"native stack: {native_words(process.native.frames, decides)}"
    words = _own_words(process, name, own, frames[0])
    found = inert(process, "sleep", words, fact) if name == "sleep" else inert(process, "native_lock", words, fact)  # fmt: skip
    return found if process.on_futex else msgspec.structs.replace(found, direct=False)


def transfer_wait(process: ProcessFacts) -> Classification | None:
    """The class of a thread that sleeps in a library of transfers whose functions have no row: for a peer or for itself, nobody can tell."""
    if process.native is None or process.computes or not process.asleep:
        return None
    frames = _below_python(process.native.frames)
    found = next((one for one in frames if TRANSFERS.match(re.split(r"[/\\]", one.file)[-1])), None)
    if found is None or found.function.startswith("0x"):
        return None
    return Classification(
        name="futex",
        role=Role.UNCLEAR,
        doing=f"waits in {found.function} ({found.file}), for a peer or for itself, in {process.at}",
        site=process.at,
        why=(
            f"native stack: {native_words(process.native.frames, found.function)}",
            *activity(process),
        ),
    )


def in_gpu_code(process: ProcessFacts) -> bool:
    """Whether its innermost Python line has called code that runs GPUs, which neither sleeps nor works on a file there."""
    frames = _below_python(process.native.frames) if process.native else ()
    if not frames or any(one.fullmatch(frames[0].function) for one in (SLEEPS, FILE_CALLS, STREAM_CALLS)):  # fmt: skip
        return False
    return any(OF_GPUS.match(name) for one in frames for name in (one.function, re.split(r"[/\\]", one.file)[-1]))  # fmt: skip


def unknown_words(process: ProcessFacts) -> str:
    """`stands in native code (TFE_Execute, libtensorflow.so)`: its innermost function that is not of the C library; "" where no native stack shows one."""
    frames = process.native.frames if process.native else ()
    named = (one for one in frames if one.native and not _tells_nothing(one) and re.match(r"[A-Za-z_~]", one.function) and not SYSTEM_CALLS.fullmatch(one.function))  # fmt: skip
    found = next(named, None)
    return (
        f"stands in native code ({', '.join(filter(None, (found.function, found.file)))})"
        if found
        else ""
    )


def _own_words(process: ProcessFacts, name: str, own: Frame | None, innermost: Frame) -> str:
    """`waits in native code of its own (tokens::Queue::pop, _fasttok.so) in load (train.py:7)`; where there is only the interpreter, `waits in fsync in …`."""
    where = f" in {process.at}" if process.frames else ""
    verb = "sleeps" if name == "sleep" else "waits"
    if own is None:
        return f"{verb}{'' if name == 'sleep' and where else f' in {innermost.function}'}{where}"
    return f"{verb} in native code of its own ({', '.join(filter(None, (own.function, own.file)))}){where}"


def _sleep_of(process: ProcessFacts, frames: Sequence[Frame]) -> str:
    """The class of a process of which the kernel was not asked, by the innermost function; "" where that is none in which a thread sleeps."""
    if process.capture.state is not None:
        return ""
    if SLEEPS.fullmatch(frames[0].function):
        return "sleep"
    reads = STREAM_CALLS.fullmatch(frames[0].function) and any(STREAMS.fullmatch(one.function) for one in frames[1:4])  # fmt: skip
    blocked = any(one.fullmatch(frames[0].function) for one in (LOCKS, FILE_CALLS))
    return "native_lock" if reads or blocked else ""


def _waits_for_others(stack: ThreadStack) -> bool:
    """Whether a thread is in a call that waits for other ranks: then its main thread may wait for just that one."""
    frames = python_frames(stack.frames)
    called = match_calls(inner(frames, site(frames)))
    if called is not None and called[0].role is Role.WAITING and called[0].name != "device_sync":
        return True
    return any(row.role is Role.WAITING and row.name != "device_sync" and row.pattern.fullmatch(frame.function) for frame in stack.frames if frame.native for row in NATIVE)  # fmt: skip


def _tells_nothing(frame: Frame) -> bool:
    """Whether the frame is of the C library or the interpreter, by its library, or by its name where that is not known."""
    known = frame.file not in ("", "?")
    return (
        C_LIBRARY.fullmatch(frame.file) is not None
        if known
        else any(
            one.fullmatch(frame.function)
            for one in (LOCKS, FILE_CALLS, SLEEPS, INTERPRETER, BEGINS)
        )
    )


def _below_python(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The native frames that the innermost Python frame has called, or all of a program without Python.

    None where the stack ends before either.
    """
    for index, frame in enumerate(frames):
        if not frame.native:
            return frames[:index]
    whole = bool(frames) and BEGINS.fullmatch(frames[-1].function) is not None
    return frames if whole else ()


def _may_wait_for_others(frame: Frame) -> bool:
    name = re.split(r"[/\\]", frame.file)[-1]
    return bool(MAY_WAIT_FOR_OTHERS.match(frame.function) or MAY_WAIT_FOR_OTHERS.match(name))
