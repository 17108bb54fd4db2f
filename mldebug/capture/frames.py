"""Whose code a frame is (the job's, a package's, a library's), and which thread shows what a process does."""

from collections.abc import Iterable

from mldebug.capture.packages import Owner, owner
from mldebug.core.model import MAIN_THREAD, Frame, ThreadStack


def owner_of(frame: Frame) -> Owner:
    """Whose code a frame belongs to, by its file; native code counts as a library's."""
    return Owner.LIBRARY if frame.native else owner(frame.path, frame.file)


def is_user(frame: Frame) -> bool:
    """True for code of the job or of a package that it uses; False for native code, the standard library, torch and other
    libraries that wait.
    """
    return owner_of(frame) is not Owner.LIBRARY


def is_own(frame: Frame) -> bool:
    """True for code of the training job itself."""
    return not frame.native and owner(frame.path, frame.file) is Owner.JOB


def bare(frame: Frame) -> str:
    """The function's name without its class (py-spy gives `Queue.get` from Python 3.11 on)."""
    return frame.function.rpartition(".")[2]


def python_frames(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Drop native frames, so that a `--native` stack compares with a plain one."""
    return tuple([frame for frame in frames if not frame.native])


def site(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the job's own code; without one, of a package that the job uses. None where all frames are of
    libraries.
    """
    best: Frame | None = None
    nearest = Owner.LIBRARY
    for frame in frames:  # thousands of ranks: most stacks are left at their first own frame
        if (whose := owner_of(frame)) < nearest:
            best, nearest = frame, whose
        if nearest is Owner.JOB:
            break
    return best


def inner(frames: tuple[Frame, ...], place: Frame | None) -> tuple[Frame, ...]:
    """The frames that `place` has called, innermost first. All frames where `place` is None or a framework's."""
    if place is None or owner_of(place) is Owner.FRAMEWORK:
        return frames
    return frames[: frames.index(place)]


def principal(stacks: tuple[ThreadStack, ...], pid: int) -> ThreadStack | None:
    """Return the thread that shows what a process does. That is its main thread, unless the main thread only waits for another
    thread and exactly one other thread runs the training: then it is that thread. Without a known main thread it is the only
    thread that runs the training; None where no thread does, or several.
    """
    main = next((s for s in stacks if s.name == MAIN_THREAD), None)
    main = main or next((s for s in stacks if s.tid == pid), None)
    if main is not None and not _parked(main):
        return main
    others = [stack for stack in stacks if stack is not main and any(map(is_user, stack.frames))]
    own = [stack for stack in others if any(map(is_own, stack.frames))]
    trainers = list(filter(_trains, own)) or list(filter(_trains, others))
    if not trainers and main is not None and _handed_over(main):
        trainers = own
    return trainers[0] if len(trainers) == 1 else main


def last_frame(stacks: tuple[ThreadStack, ...], pid: int) -> str:
    """Where a process is in Python, by the thread that shows what it does: `step (train.py:30)`; its job's own code if the stack
    has any. "" without a stack.
    """
    stack = principal(stacks, pid)
    frames = python_frames(stack.frames) if stack else ()
    found = site(frames) or next(iter(frames), None)
    return found.place if found else ""


_JOINS = ("join", "_wait_for_tstate_lock", "_shutdown")
_WAITS = (*_JOINS, "wait", "result", "run_forever", "select", "get")
_SERVES = {("ray/_private/worker.py", "main_loop")}
"""Where the main thread of a worker process stands while a thread does the work: file and function (read: Ray 2.x)."""
_TRAINING = (
    *("torch/distributed/", "torch/autograd/", "torch/cuda/", "torch/nn/modules/", "torch/optim/"),
    *("torch/utils/data/dataloader.py", "deepspeed/", "accelerate/", "megatron/core/", "horovod/"),
    *("lightning/", "lightning_fabric/", "pytorch_lightning/", "transformers/trainer.py", "jax/"),
    *("ray/train/", "ray/air/"),
)
"""Code that runs in the thread that trains, and in no thread beside it."""


def _parked(main: ThreadStack) -> bool:
    """Whether the main thread waits in a library for others, or runs no line of the job at all."""
    python = python_frames(main.frames)
    if not python:
        return False
    waits = bare(python[0]) in _WAITS and owner_of(python[0]) is Owner.LIBRARY
    return waits or not any(map(is_own, reversed(python)))  # its outermost frame mostly is


def _handed_over(main: ThreadStack) -> bool:
    """Whether it waits for a thread to end, or serves a cluster's runtime: then its one other thread of the job does the work."""
    top = python_frames(main.frames)[0]
    return bare(top) in _JOINS or (top.file, bare(top)) in _SERVES


def _trains(stack: ThreadStack) -> bool:
    """True where code of a training framework runs in this thread."""
    return any(frame.file.startswith(_TRAINING) for frame in stack.frames)


def comparable(frames: Iterable[Frame]) -> tuple[str, ...]:
    """The frames as `labels` gives them, without the classes of methods: of one stack py-spy knows them and faulthandler does not, so only
    this tells whether two stacks are the same.
    """
    return tuple(frame.label[len(frame.function) - len(bare(frame)) :] for frame in frames)


def labels(frames: Iterable[Frame]) -> tuple[str, ...]:
    """The frames as py-spy prints them, `train (train.py:30)`, innermost first."""
    return tuple(frame.label for frame in frames)
