"""A job that does what jobs do with signals, limits and interruptions finds all of it as without the hook."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from mldebug_training import interrupted
from mldebug_training.interrupted import pass_on
from unit.test_training_hook import TELL, run, site, variables

__all__ = ["site"]


# --- signals -------------------------------------------------------------------------------------

WAITS = """
    {before}
    numbers = (signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    came = []
    for number in numbers:
        os.kill(os.getpid(), number)
        came.append(signal.sigtimedwait(numbers, 10).si_signo == number)
    tell(came=came)
"""
THREADS = {
    "the hook": "import signal, torch",
    "the switches": """import signal
    from mldebug_training.switchwatch import Watch
    watch = Watch(os.getcwd(), ours=False)
    watch.start()
    watch.first_look()""",
    "a print that hangs": """import signal, socket
    from mldebug_training import rank_print
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    assert not rank_print("x" * 1_000_000, file=ours.makefile("w"), wait=0.2)""",
}


@pytest.mark.parametrize("whose", THREADS)
def test_a_signal_that_the_job_waits_for_reaches_it_and_no_thread_of_ours(
    site: Path, whose: str
) -> None:
    """Our thread would end the process: nobody handles what is waited for."""
    assert run(site, WAITS.format(before=THREADS[whose]))["came"] == [True] * 3


def test_what_a_threads_own_fault_raises_stays_open_in_ours(site: Path) -> None:
    code = """
        import signal, threading
        from mldebug_training.signals import Closed
        seen = []
        with Closed():
            one = threading.Thread(target=lambda: seen.extend(signal.pthread_sigmask(0, ())))
            one.start()
        one.join()
        faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
        mine = signal.pthread_sigmask(0, ())
        tell(open=not faults & set(seen), closed=signal.SIGCHLD in seen, mine=signal.SIGCHLD in mine)
    """
    told = run(site, code)
    assert (told["open"], told["closed"], told["mine"]) == (True, True, False)


@pytest.mark.parametrize("taken", ["range(signal.SIGRTMIN, signal.SIGRTMAX + 1)", "(FIRST,)"])
def test_a_handler_from_before_pytorch_is_called(site: Path, taken: str) -> None:
    """The hook had closed the signal to the main thread by then."""
    code = f"""
        import signal, time
        FIRST = signal.SIGRTMIN + 15
        came = []
        for number in {taken}:
            signal.signal(number, lambda number, _: came.append(number))
        import torch
        for number in {taken}:
            os.kill(os.getpid(), number)
        until = time.monotonic() + 10
        while len(came) < len({taken}) and time.monotonic() < until:
            time.sleep(0.01)
        tell(came=sorted(came) == list({taken}))
    """
    assert run(site, code)["came"] is True


def test_a_limit_of_the_size_of_files_ends_nobody(site: Path) -> None:
    code = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        import torch
        torch.optim.Optimizer().step()
        tell(pending=signal.SIGXFSZ in signal.sigpending(), mask=signal.SIGXFSZ in signal.pthread_sigmask(0, ()))
    """
    for limit, has in ((0, False), (4096, True), (1 << 30, True)):
        told = run(site, code.replace("{limit}", str(limit)), PYTHONDONTWRITEBYTECODE="1")
        assert (told["record"] is not None) is has
        assert (told["pending"], told["mask"]) == (False, False)


def test_a_limit_that_comes_later_ends_nobody_who_is_asked(site: Path) -> None:
    code = """
        import resource, signal, time, torch
        from mldebug_training.process import own
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        for number in (own.record.signal, own.record.signal - 2):
            os.kill(os.getpid(), number)
        until = time.monotonic() + 10
        while not own._flight._answers and time.monotonic() < until:
            time.sleep(0.01)
        tell(answers=own._flight._answers)
    """
    assert run(site, code, PYTHONDONTWRITEBYTECODE="1")["answers"] == 1


# --- exceptions of its handlers ------------------------------------------------------------------

HANDLERS = {
    "a function": "def handler(number, frame): raise Late",
    "a method": """class Timer:
        def ring(self, number, frame): raise Late
    handler = Timer().ring""",
    "an object": """class Timer:
        def __call__(self, number, frame): raise Late
    handler = Timer()""",
    "a partial": """import functools
    def late(why, number, frame): raise Late
    handler = functools.partial(late, "why")""",
    "one that calls another": """def ring(): raise Late
    handler = lambda number, frame: ring()""",
}
CALLS = {
    "a step": "torch.optim.Optimizer().step()",
    "a heartbeat": "mldebug_training.heartbeat(7)",
    "a phase": """with mldebug_training.phase("evaluate"): pass""",
    "a poll": """os.environ.pop("WORLD_SIZE")
        mldebug_training.Switches(os.getcwd(), reason=strikes).poll()""",
    "a print": """mldebug_training.rank_print(Odd())""",
}
INTERRUPTED = """
    import signal, torch, mldebug_training
    from mldebug_training.process import own
    class Late(Exception): pass
    {handler}
    signal.signal(signal.SIGALRM, handler)
    def strikes(*_): signal.raise_signal(signal.SIGALRM)  # as if it had come while this ran
    class Odd:
        __str__ = strikes
    for name in ("beat", "write"):
        setattr(own.record, name, strikes)
    try:
        {call}
        raised = False
    except Late:
        raised = True
    tell(raised=raised)
"""


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_of_the_job_raises_while_we_run_reaches_the_job(
    site: Path, call: str, handler: str
) -> None:
    """A deadline by `signal.alarm` would be lost otherwise, and the job wait for ever."""
    code = INTERRUPTED.replace("{handler}", HANDLERS[handler]).replace("{call}", CALLS[call])
    argv = [sys.executable, "-c", TELL + textwrap.dedent(code)]
    done = subprocess.run(
        argv, env=variables(site), capture_output=True, text=True, timeout=60, check=False, cwd=site
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["raised"] is True


def test_our_own_errors_stay_with_us_though_the_job_has_handlers() -> None:
    def handler(*_: Any) -> None: ...

    before = signal.signal(signal.SIGALRM, handler)
    try:
        try:
            raise OSError("ours")
        except OSError as error:
            pass_on(error)
        pass_on(OSError("never raised"))
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("odd", [None, 0, 1, signal.default_int_handler, object()])
def test_a_handler_without_python_code_is_none(odd: Any) -> None:
    assert interrupted._code(odd) is None
