"""From one rank's capture to its class: waiting, inert, busy, exited or unclear, with a phrase for it.

Signs are tried from the most direct to the least: the kernel's process state, wait channels that no Python frame can
explain away, the Python frames, the native frames, the remaining wait channels, the source line, and last CPU time.
"""

import re

import msgspec

from mldebug.capture.frames import bare, inner, is_user, python_frames, site
from mldebug.core.model import (
    Classification,
    ProcessCapture,
    RankCapture,
    Role,
    ThreadStack,
)
from mldebug.diagnosis.classify.awaited.children import with_child, with_feeders
from mldebug.diagnosis.classify.awaited.dataloader import stalled_loader
from mldebug.diagnosis.classify.awaited.threads import (
    gil_holder,
    waits_for_engine,
    waits_for_gil,
    with_threads,
)
from mldebug.diagnosis.classify.kernel_state import (
    by_wait_channel,
    from_sign,
    gone,
    held_by_profiler,
    stdin_wait,
    stopped,
    storage_wait,
    tracer_words,
    wait_channel,
)
from mldebug.diagnosis.classify.native_stack import (
    by_native,
    gil,
    in_gpu_code,
    native_sign,
    own_wait,
    transfer_wait,
    unknown_words,
)
from mldebug.diagnosis.classify.process_facts import ProcessFacts, activity
from mldebug.diagnosis.classify.tables.kernel_waits import POLL_WAITS
from mldebug.diagnosis.classify.tables.matching import match_calls, match_idle
from mldebug.diagnosis.classify.tables.python_calls import BACKWARD
from mldebug.diagnosis.classify.tables.signs import FrameSign, NameSign
from mldebug.diagnosis.classify.tables.source_lines import (
    GPU_SOURCE,
    LOOP_SOURCE,
    SOURCE,
    STORE_SOURCE,
)

LOOKS_AFTER_THREADS = ("poll", "thread_join", "future", "idle")
"""What a main thread does that has handed the training to another thread."""
LAUNCHES = re.compile(
    r"(?:.*/)?torch/(?:(?:optim|nn|autograd|amp)/.*|_tensor\.py|_ops\.py|functional\.py|cuda/graphs\.py|_inductor/(?:cudagraph_\w+|runtime/\w+)\.py)|"
    r"(?:.*/)?(?:triton|flash_attn\w*|flashinfer|transformer_engine|apex|xformers|bitsandbytes|sgl_kernel|deep_gemm|causal_conv1d|mamba_ssm|liger_kernel|"
    r"deepspeed/ops|vllm/(?:_custom_ops\.py|model_executor)|tensorflow/python/(?:eager|client)|fla|torchvision/ops|diffusers/models|peft/tuners|timm/(?:layers|models)|"
    r"transformers/(?:models|generation|integrations)|megatron/core/(?:transformer|models|fusions|optimizer|extensions)|sglang/srt/(?:layers|models))(?:/.*|\.py|\Z)|<string>"
)
"""Files of PyTorch, Triton, packages of GPU code, models and TensorFlow whose functions give a GPU work, or run a graph; what they generate has no file (`<string>`)."""
OF_ITS_OWN = frozenset(
    ("sleep", "fifo", "terminal", "flock", "file_lock", "child_wait", "debugger", "pipe_write")
)
"""What holds the main thread itself: no other thread of the process would free it."""


def classify(capture: RankCapture) -> Classification:
    """The class of one rank; never raises, and is `unclear` where the evidence does not decide."""
    process = ProcessFacts(capture.process)
    for sign in (gone, stopped, storage_wait, stdin_wait):
        if found := sign(process):
            return found
    found = _by_calls(process, capture)
    if found is None:
        found = by_native(process) or own_wait(process) or transfer_wait(process)
        found = found or _by_source(process, STORE_SOURCE)
        found = found or by_wait_channel(process) or _by_source(process, SOURCE + GPU_SOURCE)
    found = found or _by_activity(process)
    if found.name == "child_wait":
        return with_child(found, capture, classify_process)
    if found.role is Role.WAITING or found.name in OF_ITS_OWN:
        return found
    if by_thread := _by_other_threads(process, capture, found.name):
        return by_thread
    found = with_threads(found, capture.process, classify_process)
    return with_feeders(found, capture, classify_process)


def classify_process(capture: ProcessCapture) -> Classification:
    """The class of a child process (a DataLoader worker), by the same signs as a rank, without the child's own children."""
    process = ProcessFacts(capture)
    for sign in (gone, stopped, storage_wait, stdin_wait, by_native, by_wait_channel):
        if found := sign(process):
            return found
    if process.computes and not process.frames:
        doing = "computes (its stack could not be read)"
        return Classification(name="busy", role=Role.BUSY, doing=doing, why=activity(process))
    return _by_activity(process)


def _by_other_threads(
    process: ProcessFacts, capture: RankCapture, name: str
) -> Classification | None:
    """Training may run in another thread (Ray, a pool of communication threads): if one waits, the rank waits.

    Only for a main thread that itself does nothing but wait for its threads; the phrase names the thread.
    """
    if process.computes and process.thread.state == "R":
        return None
    for stack in process.capture.stacks:
        if stack is process.stack or site(stack.frames) is None:
            continue
        frames = python_frames(stack.frames)
        match = match_calls(inner(frames, site(frames)))
        if match and match[0].role is Role.WAITING and match[0].name != "device_sync":
            return _waits_in_thread(process, stack, *match)
        if match and match[0].name == "dataloader" and name in LOOKS_AFTER_THREADS:
            return _loads_in_thread(process, stack, match[0], capture)
    return None


def _loads_in_thread(
    process: ProcessFacts, stack: ThreadStack, row: FrameSign, capture: RankCapture
) -> Classification:
    place = site(stack.frames)
    at = place.place if place else process.at
    doing = f"{row.phrase.format(site=at)}, in its thread {stack.name or stack.tid}"
    found = stalled_loader(process, doing, capture, classify_process)
    return msgspec.structs.replace(found, site=at, thread=stack.name or str(stack.tid))


def _waits_in_thread(
    process: ProcessFacts, stack: ThreadStack, row: FrameSign, operation: str
) -> Classification:
    place = site(stack.frames)
    at = place.place if place else process.at
    return Classification(
        name=row.name,
        role=Role.WAITING,
        doing=f"{row.phrase.format(op=operation, site=at)}, in its thread {stack.name or stack.tid}",
        site=at,
        operation=operation,
        thread=stack.name or str(stack.tid),
        why=(f"its main thread stands in {process.at}", *activity(process)),
    )


# --- stacks ----------------------------------------------------------------------------------------


def _by_calls(process: ProcessFacts, capture: RankCapture) -> Classification | None:
    """Ask the table of Python calls; the kernel and the native stack then make it direct, or correct it."""
    runs_python = bool(process.stack and process.stack.owns_gil)
    match = match_calls(process.region, runs_python=runs_python)
    if match is None:
        return _backward(process)
    row, operation = match
    if row.name == "dataloader":
        return stalled_loader(
            process, row.phrase.format(site=process.at), capture, classify_process
        )
    doing = row.phrase.format(op=operation, site=process.at)
    if row.name == "child_wait" and _busy_children(capture):
        return _busy_child(process)
    if row.name == "thread_exit":
        doing += _other_threads(process)
    if (
        row.role is Role.BUSY
        and not process.computes
        and process.still
        and not _busy_children(capture)
    ):
        return _frozen_work(process, doing)
    native = native_sign(process)
    return Classification(
        name=row.name,
        role=row.role,
        doing=doing,
        operation=operation,
        site=process.at,
        direct=native is not None and native[0].role is row.role,
        why=(f"Python frames: {operation} called at {process.at}", *activity(process)),
    )


def _other_threads(process: ProcessFacts) -> str:
    """` (uploader, in push (upload.py:9))`: the threads that are left, with their place."""
    others = [
        stack for stack in process.capture.stacks if stack is not process.stack and stack.frames
    ]
    threads = [
        f"{stack.name or stack.tid}, in {(site(stack.frames) or stack.frames[0]).place}"
        for stack in others
    ]
    return f" ({'; '.join(threads[:3])})" if threads else ""


def _frozen_work(process: ProcessFacts, doing: str) -> Classification | None:
    """Work that does not move: classified by its wait channel, else unclear."""
    if found := by_wait_channel(process):
        return found
    if process.movement is None:  # one look shows no standing still
        return Classification(name="idle", role=Role.INERT, doing=doing, site=process.at)
    why = ("no CPU time, no I/O and the same frames in every sample",)
    return Classification(
        name="idle", role=Role.INERT, doing=f"{doing}, without moving", site=process.at, why=why
    )


def _backward(process: ProcessFacts) -> Classification | None:
    """`backward()` computes, or waits inside for other ranks: native frames decide, else whether it sleeps."""
    row = BACKWARD
    hits = [
        f for f in process.region if row.file.fullmatch(f.file) and row.function.fullmatch(bare(f))
    ]
    if not hits:
        return None
    if (native := by_native(process)) is not None:
        return native
    if _lacks_gil(process) and not process.computes and process.still:
        return gil(process, "another thread of it owns the GIL")
    facts = activity(process)
    if process.computes or not (process.still or process.rests):
        return Classification(
            name="backward",
            role=Role.BUSY,
            doing=f"runs backward at {process.at}",
            site=process.at,
            why=facts,
        )
    if not process.on_futex and not waits_for_engine(process.native):
        return None
    doing = f"waits inside backward at {process.at}"
    return Classification(
        name="backward_wait",
        role=Role.WAITING,
        doing=doing,
        operation="backward",
        site=process.at,
        why=facts,
    )


def _lacks_gil(process: ProcessFacts) -> bool:
    """Whether another thread keeps the GIL: in one look at Python's frames alone it may have it for a moment, and backward needs it for hooks only."""
    holder = gil_holder(process.capture)
    seen_once = process.movement is None and process.capture.state is None
    return holder is not None and not (seen_once and holder.frames and not holder.frames[0].native)


def _busy_child(process: ProcessFacts) -> Classification:
    doing = f"waits for a child process that computes, in {process.at}"
    return Classification(
        name="child_busy", role=Role.BUSY, doing=doing, site=process.at, why=activity(process)
    )


def _busy_children(capture: RankCapture) -> bool:
    """True where a child process computes for the rank: a compiler, for one."""
    return any(ProcessFacts(child).computes for child in capture.children)


# --- what remains ----------------------------------------------------------------------------------


def _by_source(process: ProcessFacts, table: tuple[NameSign, ...]) -> Classification | None:
    """A source line such as `loss.item()` shows a wait that leaves no Python frame; C code has released the GIL there, but for loops that ask."""
    line = process.capture.source_line
    if not line or not process.frames or process.frames[0] is not process.place:
        return None
    if process.stack and process.stack.owns_gil:
        table = LOOP_SOURCE
    rows = table if process.has_gpu else (row for row in table if row not in GPU_SOURCE)
    for row in rows:
        if row.pattern.fullmatch(line):
            return from_sign(process, row, f"source line: {line.strip()}", direct=False)
    return None


def _by_activity(process: ProcessFacts) -> Classification:
    """No name for what it does: the counters decide between busy and idle, and between those and unclear."""
    holder = next((s for s in process.capture.stacks if s.owns_gil), None)
    if process.computes and _released_gil(process):
        return _loosely(process, "native_code", Role.UNCLEAR, "is in native code in")
    if not process.frames:
        where = process.thread.kernel_stack[:1]
        doing = f"waits in the kernel ({where[0]}), and its stack was not read" if where else unknown_words(process) or "cannot be seen"  # fmt: skip
        return Classification(name="unclear", role=Role.UNCLEAR, doing=doing, why=activity(process))
    state = process.capture.state
    if state is not None and held_by_profiler(state):
        return _loosely(process, "profiled", Role.UNCLEAR, f"is held by {tracer_words(state)} in")
    if waits_for_gil(process):
        return gil(process, "another thread of it owns the GIL")
    if process.computes or not process.still:
        return _loosely(process, "busy", Role.BUSY, "runs")
    if holder is not None and holder is not process.stack and (_lacks_gil(process) or not _launches(process)):  # fmt: skip
        return gil(process, "another thread of it owns the GIL")
    if process.on_futex and is_user(process.frames[0]):
        return _loosely(process, "futex", Role.UNCLEAR, "waits for a lock, or for other ranks, in")
    if _launches(process):
        return _loosely(process, "native_code", Role.UNCLEAR, "is in native code in")
    if row := match_idle(process.region):
        return _loosely(process, row.name, row.role, row.phrase)
    polls = POLL_WAITS.fullmatch(wait_channel(process.thread))
    unknown = process.movement is None and state is None and process.stack is not None and process.stack.activity_unknown  # fmt: skip
    words = "waits for a descriptor (a socket, a pipe) in" if polls else "stands in" if unknown else "does nothing in"  # fmt: skip
    return _loosely(process, "idle", Role.INERT, words)


def _launches(process: ProcessFacts) -> bool:
    """Seen once, in a call of PyTorch or of native code that gives its GPU work: it waits where the GPU's queue is full, or a tensor is taken off it."""
    seen_once = process.movement is None and process.capture.state is None
    launches = LAUNCHES.fullmatch(process.frames[0].file) is not None
    return seen_once and (launches or in_gpu_code(process))


def _loosely(process: ProcessFacts, name: str, role: Role, words: str) -> Classification:
    """A class that rests on counters alone."""
    doing = f"{words} {process.at}"
    return Classification(name=name, role=role, doing=doing, site=process.at, why=activity(process))


def _released_gil(process: ProcessFacts) -> bool:
    """On a CPU, in the same Python line all the time, without the GIL: C code runs, or spins."""
    frozen = process.movement is None or process.movement.same_frames
    return frozen and bool(process.stack) and not any(s.owns_gil for s in process.capture.stacks)
