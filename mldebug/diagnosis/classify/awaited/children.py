"""A rank that waits for a process of its own: which one, and what that does."""

import re
from collections.abc import Callable

import msgspec

from mldebug.capture.frames import inner, owner_of, principal, site
from mldebug.capture.packages import Owner
from mldebug.core.model import Classification, ProcessCapture, RankCapture, Role, ThreadStack
from mldebug.core.redact import safe_line
from mldebug.diagnosis.classify.awaited.dataloader import begun, child_stack
from mldebug.diagnosis.classify.awaited.threads import with_job_threads
from mldebug.diagnosis.classify.process_facts import ProcessFacts

ClassifyProcess = Callable[[ProcessCapture], Classification]

MAX_NAMED = 3
ANY_CHILD = 0xFFFFFFFF  # wait4(-1), of 32 bits
BY_PID = 1  # waitid's P_PID
HELPERS = ("multiprocessing/resource_tracker.py", "multiprocessing/forkserver.py")
FED_BY_CHILDREN = ("lock", "pipe_read")
BETWEEN_PROCESSES = re.compile(r"(?:.*/)?multiprocess(?:ing)?/(?:queues|connection|synchronize|pool)\.py")  # fmt: skip
HARD = ("storage", "uninterruptible", "stopped", "traced")
"""Classes that a child cannot leave by itself: then it is to blame as a stopped rank would be."""


def with_child(
    found: Classification, capture: RankCapture, classify_child: ClassifyProcess
) -> Classification:
    """Add to the class of a rank that waits for a child process what that child does.

    Where it may be one of several, all are described and none is blamed. Other classes are returned
    unchanged.
    """
    waited = _waited_for(capture)
    if not waited or found.role is not Role.INERT:
        return found
    classes = [(child, classify_child(child)) for child in waited[:MAX_NAMED]]
    words = "; ".join(_words(child, is_) for child, is_ in classes)
    facts = [fact for child, _ in classes for fact in child_stack(child)]
    facts += [f"process {child.pid}: {fact}" for child, is_ in classes for fact in is_.why]
    doing, why = f"{found.doing}: {words}", (*facts, *found.why)
    if len(waited) > 1:
        return msgspec.structs.replace(found, doing=doing, why=why)
    (child, is_) = classes[0]
    hard = is_.name in HARD
    return msgspec.structs.replace(
        found,
        doing=doing,
        why=why,
        direct=is_.direct if hard else found.direct,
        mount=is_.mount,
        path=is_.path,
        worker_pid=child.pid if hard else None,
        worker_class=is_.name,
        holders=is_.holders,
    )


def with_feeders(
    found: Classification, capture: RankCapture, classify_child: ClassifyProcess
) -> Classification:
    """Add to the class of a rank that waits for something between processes (a queue, a pipe, a lock) what those of its children do that
    run code of the job or of an installed package. Which of them it waits for is not known, so none is blamed.
    """
    if found.name not in FED_BY_CHILDREN or not any(map(_meets_processes, capture.process.stacks)):
        return found
    feeders = [child for child in capture.children if _is_direct(child, capture) and _works(child)]
    classes = [(child, with_job_threads(classify_child(child), child, classify_child)) for child in feeders[:MAX_NAMED]]  # fmt: skip
    if not classes:
        return found
    words = "; ".join(f"its {_words(child, is_)}" for child, is_ in classes)
    facts = tuple(fact for child, _ in classes for fact in child_stack(child))
    return msgspec.structs.replace(found, doing=f"{found.doing}: {words}", why=(*facts, *found.why))


def _meets_processes(stack: ThreadStack) -> bool:
    """Whether a thread of the job's own code, or of a package's, stands in a call of multiprocessing."""
    inside = inner(stack.frames, site(stack.frames))
    return any(BETWEEN_PROCESSES.fullmatch(frame.file) for frame in inside) and inside != stack.frames  # fmt: skip


def _works(child: ProcessCapture) -> bool:
    """Whether it does more than wait for its next task: a line of the job or of a package stands above where its process begins."""
    return any(owner_of(frame) < Owner.FRAMEWORK for stack in child.stacks for frame in begun(stack))  # fmt: skip


def _waited_for(capture: RankCapture) -> list[ProcessCapture]:
    """The child whose number its system call gives; else all its own children that are no helpers."""
    thread = ProcessFacts(capture.process).thread
    wanted = 0
    if thread.syscall == "wait4" and thread.syscall_args:
        wanted = thread.syscall_args[0] & 0xFFFFFFFF
    elif thread.syscall == "waitid" and thread.syscall_args[:1] == (BY_PID,):
        wanted = thread.syscall_args[1]
    exact = [child for child in capture.children if child.pid == wanted and wanted != ANY_CHILD]
    own = [child for child in capture.children if not _helps(child) and _is_direct(child, capture)]
    return exact or own


def _is_direct(child: ProcessCapture, capture: RankCapture) -> bool:
    return child.state is None or child.state.ppid in (0, capture.process.pid)


def _helps(child: ProcessCapture) -> bool:
    """Whether it is one of the processes that multiprocessing keeps for itself."""
    stack = principal(child.stacks, child.pid)
    return stack is not None and any(frame.file in HELPERS for frame in stack.frames)


def _words(child: ProcessCapture, is_: Classification) -> str:
    """`process 4711 sleeps in write_shard (writer.py:9)`, or of a program that is no Python what was started."""
    if child.command and not child.stacks:
        return f"process {child.pid} ({safe_line(child.command, 120)})"
    return f"process {child.pid} {is_.doing}"
