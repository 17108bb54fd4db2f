"""What a frame belongs to (the job, a framework, the standard library) and which thread speaks for a process."""

import re
from collections.abc import Iterable
from functools import lru_cache

from mldebug.core.model import MAIN_THREAD, Frame, ThreadStack

PACKAGES = re.compile(
    r"/(?:site|dist)-packages/|/(?=mldebug_training/)"
)  # the hook may lie anywhere
_STDLIB = re.compile(r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)|^<frozen |^<string>$")
# py-spy shortens paths by sys.path, so recorded stacks may show a bare "threading.py".
_STDLIB_SHORT = re.compile(
    r"^(threading|queue|selectors|subprocess|socket|socketserver|ssl|bdb|pdb|cmd|codeop|code|runpy|contextlib|functools|"
    r"tempfile|shutil|pathlib|pickle|json/\w+|logging/\w+|asyncio/\w+|multiprocessing/\w+|concurrent/futures/\w+|"
    r"importlib/\w+|_pyrepl/\w+|http/\w+|urllib/\w+|email/\w+|weakref|copy|gzip|zipfile|tarfile|random|signal)\.py$"
)
_LIBRARY = re.compile(
    r"^(torch|torchvision|triton|mldebug_training|filelock|portalocker|safetensors|deepspeed/comm|ipdb|pudb|debugpy)(/|\.py$)"
)


def is_user(frame: Frame) -> bool:
    """True for code of the training job: neither native, nor the standard library, nor torch itself."""
    return not frame.native and _is_user(frame.path, frame.file)


@lru_cache(maxsize=4096)
def _is_user(path: str, file: str) -> bool:
    """Asked for every frame of every rank, which are of a few dozen files."""
    if _STDLIB.search(path) or _STDLIB_SHORT.match(file) or file.startswith("<frozen"):
        return False
    inside = PACKAGES.split(path)[-1] if path else file
    return not _LIBRARY.match(inside) and not (inside.startswith("/") and _LIBRARY.match(file))


def bare(frame: Frame) -> str:
    """The name without its class: py-spy qualifies names from Python 3.11 on (`Queue.get`)."""
    return frame.function.rpartition(".")[2]


def python_frames(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Drop native frames, so that a `--native` stack compares with a plain one."""
    return tuple(frame for frame in frames if not frame.native)


def site(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the training job: the place in its own code."""
    return next((frame for frame in frames if is_user(frame)), None)


def inner(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The library frames inside the innermost user frame, innermost first: what the user's line called."""
    for index, frame in enumerate(frames):
        if is_user(frame):
            return frames[:index]
    return frames


def principal(stacks: tuple[ThreadStack, ...], pid: int) -> ThreadStack | None:
    """The thread whose stack speaks for the process: the main one, unless it only waits for a training thread."""
    main = next((s for s in stacks if s.name == MAIN_THREAD), None)
    main = main or next((s for s in stacks if s.tid == pid), None)
    if main is not None and not _only_waits_for_threads(main):
        return main
    trainers = [stack for stack in stacks if stack is not main and _trains(stack)]
    return trainers[0] if len(trainers) == 1 else main


def last_frame(stacks: tuple[ThreadStack, ...], pid: int) -> str:
    """Where that thread is in Python, in the job's own code if it is below any: `step (train.py:30)`; "" without a stack."""
    stack = principal(stacks, pid)
    frames = python_frames(stack.frames) if stack else ()
    found = site(frames) or next(iter(frames), None)
    return found.label if found else ""


def _only_waits_for_threads(stack: ThreadStack) -> bool:
    joins = {
        "join",
        "_wait_for_tstate_lock",
        "wait",
        "result",
        "_shutdown",
        "run_forever",
        "select",
        "get",
    }
    python = python_frames(stack.frames)
    return bool(python) and bare(python[0]) in joins and not is_user(python[0])


def _trains(stack: ThreadStack) -> bool:
    """True where torch's distributed, autograd or CUDA code runs under a user frame in this thread."""
    places = (
        "torch/distributed/distributed_c10d.py",
        "torch/autograd/",
        "torch/cuda/__init__.py",
        "torch/nn/modules/module.py",
    )
    return (
        any(frame.file.startswith(places) for frame in stack.frames)
        and site(stack.frames) is not None
    )


def labels(frames: Iterable[Frame]) -> tuple[str, ...]:
    """The frames as py-spy prints them, innermost first."""
    return tuple(frame.label for frame in frames)
