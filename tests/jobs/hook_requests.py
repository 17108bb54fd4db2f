"""One process with the hook and the real torch.profiler that is asked for profiles in every way; prints what came of each as JSON."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mldebug_training import heartbeat, phase
from mldebug_training.hook.on_request import memory_history, requests, step_profile
from mldebug_training.hook.process import own

MODEL = torch.nn.Linear(8, 8)
SNAPSHOT = json.loads(Path(sys.argv[1]).read_text())
step = 0
number = 0


def work(count: int = 1) -> None:
    """So many steps."""
    global step
    for _ in range(count):
        MODEL(torch.randn(2, 8)).sum().backward()
        step += 1
        heartbeat(step)


def ask(what: str = "profile", mode: int = 0o600, **more: Any) -> None:
    """As the agent does, without its signal."""
    global number
    number += 1
    path = Path(own.record.path + ".request")
    path.unlink(missing_ok=True)
    path.write_text(json.dumps({"layout": 1, "number": number, "what": what, **more}))
    path.chmod(mode)
    own._look_for_request()


def answer() -> dict[str, Any]:
    """What stands beside the record, and that PyTorch is as it was."""
    path = Path(own.record.path + ".answer")
    found = json.loads(path.read_text()) if path.exists() else {}
    profiler = torch.autograd.profiler
    found["clean"] = not torch.autograd._profiler_enabled() and profiler._enable_profiler is REAL
    return found


def result(found: dict[str, Any]) -> Any:
    """The JSON in the file that is held open."""
    return json.loads(os.pread(found["fd"], found["bytes"] + 1, 0))


def own_profiler() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def traced() -> dict[str, Any]:
    ask(steps=2)
    work(4)
    found = answer()
    names = [one["name"] for one in result(found)["traceEvents"]]
    return {**found, "steps": names.count("aten::linear")}


def profiles_itself() -> dict[str, Any]:
    mine = own_profiler()
    mine.start()
    ask(steps=1)
    work(3)
    mine.stop()
    return {**answer(), "mine": len(mine.events())}


def begins_to_profile_itself() -> dict[str, Any]:
    ask(steps=5)
    work(2)
    with own_profiler() as mine:
        work(2)
    return {**answer(), "mine": len(mine.events())}


def forks() -> dict[str, Any]:
    ask(steps=5)
    work(2)
    child = os.fork()
    if not child:
        os._exit(torch.autograd._profiler_enabled())
    return {**answer(), "child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def evaluates() -> dict[str, Any]:
    ask(steps=5)
    work(2)
    with phase("evaluate"):
        pass
    return answer()


def loads_data() -> dict[str, Any]:
    ask(steps=1)
    work(1)
    with phase("data_wait"):
        pass
    work(1)
    return answer()


def asked_twice() -> dict[str, Any]:
    ask(steps=2)
    work(1)
    ask(steps=1)
    second = answer()
    work(3)
    return {**answer(), "second": second["why"]}


def others_may_write() -> dict[str, Any]:
    ask(mode=0o666)
    work(2)
    os.unlink(own.record.path + ".request")
    return answer()


def a_link() -> dict[str, Any]:
    path = Path(own.record.path + ".request")
    target = path.with_suffix(".target")
    target.write_text(json.dumps({"layout": 1, "number": 999, "what": "profile"}))
    path.symlink_to(target)
    own._look_for_request()
    path.unlink()
    target.unlink()
    work(2)
    return answer()


def too_many() -> dict[str, Any]:
    return changed(step_profile, "MAX_EVENTS", 1)


def no_room() -> dict[str, Any]:
    return changed(step_profile, "free_bytes", lambda: 5)


def changed(module: Any, name: str, value: Any) -> dict[str, Any]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        ask(steps=1)
        work(3)
        return answer()
    finally:
        setattr(module, name, before)


def too_late() -> dict[str, Any]:
    ask(steps=1, seconds=1)
    own.task._until = 0.0
    work(2)
    return answer()


def let_go() -> dict[str, Any]:
    """What is held is let go of with a later step."""
    ask(steps=1)
    work(2)
    held = answer()["fd"]
    own.task._until = 0.0
    work(1)
    gone = os.path.exists(f"/proc/self/fd/{held}")
    return {**answer(), "still_open": gone, "task": own.task is not None}


def records_a_graph() -> dict[str, Any]:
    """It neither begins nor ends while the job records a CUDA graph, not even where the time is up."""
    real = torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing
    torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = lambda: True, lambda: True
    try:
        ask(steps=1)
        work(2)
        begun = torch.autograd._profiler_enabled()
        torch.cuda.is_initialized = real[0]
        work(1)
        torch.cuda.is_initialized = lambda: True
        own.task._until = 0.0
        work(2)
        with phase("evaluate"):
            pass
        still = torch.autograd._profiler_enabled()
    finally:
        torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = real
    own.task._until = float("inf")
    work(1)
    return {**answer(), "begun": begun, "still": still}


def memory_unarmed() -> dict[str, Any]:
    ask("memory")
    work(1)
    return answer()


def memory_armed() -> dict[str, Any]:
    cuda = SimpleNamespace(
        current_device=lambda: 0,
        mem_get_info=lambda device: (1 << 30, 80 << 30),
        memory_stats=lambda device: {"num_alloc_retries": 2},
        memory=SimpleNamespace(_snapshot=lambda: SNAPSHOT),
    )
    known = memory_history.MemoryHistory(SimpleNamespace(cuda=cuda))
    memory_history._known[:] = [known]
    ask("memory")
    work(1)
    early = answer()["why"]
    known.why = ""
    ask("memory")
    work(1)
    found = answer()
    return {**found, "early": early, "file": result(found)}


def left_behind() -> dict[str, Any]:
    """Its asker was killed before it sent the signal, and somebody asks for the stacks much later."""
    path = Path(own.record.path + ".request")
    path.write_text(json.dumps({"layout": 1, "number": 998, "what": "profile"}))
    path.chmod(0o600)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    own._look_for_request()
    work(2)
    return {**answer(), "lies_there": path.exists()}


def elsewhere(does: Callable[[], Any]) -> None:
    """Do it in another thread."""
    thread = threading.Thread(target=does)
    thread.start()
    thread.join()


def two_threads_step() -> dict[str, Any]:
    """A thread's profiler is ended by nobody else."""
    ask(steps=1)
    work(1)
    elsewhere(work)
    amid = torch.autograd._profiler_enabled()
    work(1)
    return {**answer(), "amid": amid}


def another_thread_is_too_late() -> dict[str, Any]:
    ask(steps=1)
    work(1)
    own.task._until = 0.0
    elsewhere(work)
    work(1)
    return answer()


def another_thread_profiles() -> dict[str, Any]:
    """It waits until the thread whose profiler it is has thrown that away with its next step."""
    ask(steps=9)
    work(1)
    mine = own_profiler()

    def profile() -> None:
        with mine:
            MODEL(torch.randn(2, 8))

    thread = threading.Thread(target=profile)
    thread.start()
    while not own.task._why:
        time.sleep(0.01)
    work(1)
    thread.join()
    return {**answer(), "mine": len(mine.events())}


def another_thread_does_not_wait_for_ever() -> dict[str, Any]:
    ask(steps=9)
    work(1)
    before, step_profile.PATIENCE = step_profile.PATIENCE, 0.1
    elsewhere(lambda: own_profiler().start())
    step_profile.PATIENCE = before
    work(1)
    return answer()


def another_thread_profiled_before() -> dict[str, Any]:
    """PyTorch would end the process by a segmentation fault."""
    begun, done = threading.Event(), threading.Event()
    mine = own_profiler()

    def profile() -> None:
        with mine:
            MODEL(torch.randn(2, 8))
            begun.set()
            done.wait(60)

    thread = threading.Thread(target=profile)
    thread.start()
    begun.wait(60)
    ask(steps=1)
    work(2)
    done.set()
    thread.join()
    return {**answer(), "mine": len(mine.events())}


def cancel(which: int) -> None:
    """As the agent does when nobody waits for that request any more."""
    path = Path(own.record.path + ".request")
    path.write_text(json.dumps({"layout": 1, "number": which, "what": "cancel"}))
    path.chmod(0o600)
    own._look_for_request()


def nobody_waits() -> dict[str, Any]:
    """Whoever asked goes after two of nine steps: the third is not traced any more, and the next may ask."""
    ask(steps=9)
    work(2)
    cancel(number)
    amid = torch.autograd._profiler_enabled()
    work(1)
    found = answer()
    ask(steps=1)
    work(2)
    return {**found, "amid": amid, "next": answer()["state"]}


def nobody_waits_for_the_first_step() -> dict[str, Any]:
    ask(steps=9)
    cancel(number)
    work(1)
    return answer()


def nobody_waits_for_another() -> dict[str, Any]:
    ask(steps=2)
    work(1)
    cancel(number + 1)
    work(2)
    cancel(number)  # it is done
    work(1)
    return answer()


def unknown() -> dict[str, Any]:
    ask("format-disk")
    work(2)
    return answer()


CASES: tuple[Callable[[], dict[str, Any]], ...] = (
    unknown, traced, nobody_waits, nobody_waits_for_the_first_step, nobody_waits_for_another, profiles_itself, begins_to_profile_itself, forks, evaluates, loads_data, asked_twice, others_may_write,
    a_link, too_many, no_room, too_late, records_a_graph, memory_unarmed, memory_armed, left_behind,
    two_threads_step, another_thread_is_too_late, another_thread_profiles,
    another_thread_profiled_before, let_go, another_thread_does_not_wait_for_ever,
)  # fmt: skip

if __name__ == "__main__":
    REAL = torch.autograd.profiler._enable_profiler
    own.answer_requests(requests.take)
    own.start()
    work(2)
    with own_profiler():  # what PyTorch opens once
        work(1)
    before = len(os.listdir("/proc/self/fd"))
    found = {case.__name__: case() for case in CASES}
    found["descriptors"] = {"more": len(os.listdir("/proc/self/fd")) - before}
    print(json.dumps(found))
