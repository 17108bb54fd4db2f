"""A job that does what jobs do with signals, limits and files finds all of it as without the hook."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import mldebug_training
from unit.training.test_hook import PYTHONS, python, run, site

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
    from mldebug_training.helpers.switches.watch import SwitchWatch
    watch = SwitchWatch(os.getcwd(), ours=False)
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
        from mldebug_training.common.signals import closed
        seen = []
        one = threading.Thread(target=lambda: seen.extend(signal.pthread_sigmask(0, ())))
        closed(one.start)
        one.join()
        faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
        mine = signal.pthread_sigmask(0, ())
        tell(open=not faults & set(seen), closed=signal.SIGCHLD in seen, mine=signal.SIGCHLD in mine)
    """
    done = run(site, code)
    assert (done["open"], done["closed"], done["mine"]) == (True, True, False)


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
        until = time.monotonic() + 60
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
        done = run(site, code.replace("{limit}", str(limit)), PYTHONDONTWRITEBYTECODE="1")
        assert (done["record"] is not None) is has
        assert (done["pending"], done["mask"]) == (False, False)


def test_a_limit_that_comes_later_ends_nobody_who_is_asked(site: Path) -> None:
    code = """
        import resource, signal, time, torch
        from mldebug_training.hook.process import own
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        for number in (own.record.signal, own.record.signal - 2):
            os.kill(os.getpid(), number)
        until = time.monotonic() + 60
        while not own._flight._answers and time.monotonic() < until:
            time.sleep(0.01)
        tell(answers=own._flight._answers)
    """
    assert run(site, code, PYTHONDONTWRITEBYTECODE="1")["answers"] == 1


# Strikes at one opcode after the other, at every line's first as well, until a call gets through.
STRIKES = """
    import os, signal, sys
    from mldebug_training.common import signals
    numbers = {signal.SIGPIPE, signal.SIGUSR1}
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    readable, broken = os.pipe()
    os.close(readable)
    class Late(Exception): pass

    def strike(frame, event, _):
        global left
        if frame.f_code.co_filename != signals.__file__:
            return None
        frame.f_trace_opcodes = {opcodes}
        if event in ("line", "opcode"):
            left -= 1
            if left == 0:
                raise Late
        return strike

    def work():
        try:
            os.write(broken, b"x")
        except BrokenPipeError:
            pass

    rounds, through = 0, False
    while not through:
        rounds += 1
        left = rounds
        sys.settrace(strike)
        try:
            {call}
            through = left > 0
        except Late:
            pass
        sys.settrace(None)
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), rounds
        assert not signal.sigpending(), rounds
    print(rounds)
"""


@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize("opcodes", ["False", "True"])
@pytest.mark.parametrize("call", ["signals.closed(int)", "signals.shielded(signal.SIGPIPE, work)"])
def test_what_a_handler_raises_at_any_line_leaves_no_signal_blocked(
    call: str, opcodes: str, version: str
) -> None:
    if (opcodes, version) == ("True", "3.9"):
        pytest.skip("a trace function of 3.9 may raise at lines only")
    home = Path(mldebug_training.__file__).parents[1]
    code = textwrap.dedent(STRIKES.replace("{call}", call).replace("{opcodes}", opcodes))
    done = subprocess.run(
        [python(version), "-c", code],
        env={"PYTHONPATH": str(home)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert int(done.stdout) > (20 if opcodes == "True" else 6)


# --- its files -----------------------------------------------------------------------------------

CUT = """
    import signal, time, torch, mldebug_training
    from mldebug_training.hook.process import own
    {before}
    os.truncate(own.record.path, 0)
    {then}
    tell(lives=True)
"""
WRITES = {
    "a step": "torch.optim.Optimizer().step()",
    "a phase": """with mldebug_training.phase("evaluate"): pass""",
    "a timeout": "own.record.write_timeout(600)",
    "a Flight Recorder": """os.kill(os.getpid(), own.record.signal - 2)
    until = time.monotonic() + 60
    while not own._flight._answers and time.monotonic() < until:
        time.sleep(0.01)""",
}


@pytest.mark.parametrize("before", ["", "os.close(own.record._file.fd)"])
@pytest.mark.parametrize("then", WRITES)
def test_a_record_that_somebody_cuts_short_ends_nobody(site: Path, before: str, then: str) -> None:
    """Memory of a file that is gone ends who touches it: SIGBUS."""
    code = CUT.replace("{before}", before).replace("{then}", WRITES[then])
    assert run(site, code)["lives"] is True


def test_a_job_that_closes_what_it_does_not_know_is_heard_all_the_same(site: Path) -> None:
    code = """
        import torch, mldebug_training
        from mldebug_training.hook.process import own
        os.close(own.record._file.fd)
        mldebug_training.heartbeat(7)
        with open(own.record.path, "rb") as file:
            tell(step=int.from_bytes(file.read(48)[40:], "little"))
    """
    assert run(site, code)["step"] == 7


# --- what it has changed in Python itself ----------------------------------------------------------


def test_a_library_that_puts_others_in_the_place_of_threads_does_not_hang_the_job(
    site: Path,
) -> None:
    """gevent and eventlet do: what is started as a thread runs in the one that starts it, and blocks it."""
    code = """
        import _thread
        def at_once(function, args=(), kwargs=None):
            function(*args, **(kwargs or {}))
            return 1
        _thread.start_new_thread = _thread.start_new = at_once
        _thread.get_ident = lambda: 7
        import torch, mldebug_training
        from mldebug_training.hook.process import own
        mldebug_training.heartbeat(3)
        os.kill(os.getpid(), own.record.signal)
        until = __import__("time").monotonic() + 20
        told = ""
        while "End of stacks" not in told and __import__("time").monotonic() < until:
            with open(own.record.path + ".stacks") as file:
                told = file.read().strip("\\0")
        tell(step=own.record.step, answered="End of stacks 1." in told)
    """
    found = run(site, code)
    assert (found["step"], found["answered"]) == (3, True)


def test_where_threads_were_replaced_before_us_nothing_is_armed(site: Path) -> None:
    code = """
        import _thread
        real, _thread.start_new_thread = _thread.start_new_thread, lambda *_: 1
        import mldebug_training
        mldebug_training.heartbeat(3)
        from mldebug_training.hook.process import own
        tell(step=own.record.step, ask=own.record.signal)
    """
    found = run(site, code, MLDEBUG_HOOK="0")
    assert (found["step"], found["ask"]) == (3, 0)


def test_a_finder_that_asks_all_the_others_as_ours_does_finds_pytorch(site: Path) -> None:
    code = """
        class Finder:
            def find_spec(self, name, path=None, target=None):
                found = (one.find_spec(name, path, target) for one in sys.meta_path if one is not self)
                return next((spec for spec in found if spec is not None), None)
        sys.meta_path.insert(0, Finder())
        import torch
        torch.optim.Optimizer().step()
        tell()
    """
    assert run(site, code)["record"]


def test_a_phase_that_was_never_left_ends_with_the_next_step(site: Path) -> None:
    """What a handler raises between two lines of ours can keep it from ending; one of the job's own goes on."""
    code = """
        import torch, mldebug_training
        from mldebug_training.hook.process import own
        def now(): return own.record.phase.decode()
        mldebug_training.heartbeat(1)
        own.enter("warmup")
        own.enter("evaluate")
        mldebug_training.heartbeat(1, loss=0.5)
        told = [now()]
        mldebug_training.heartbeat(2)
        tell(told=[*told, now()])
    """
    assert run(site, code)["told"] == ["evaluate", "warmup"]


# --- what `mldebug run` hands on ---------------------------------------------------------------------


@pytest.mark.parametrize("program", ["mldebug", "mldebug_training"])
def test_a_job_gets_no_signal_ignored_that_was_not(program: str) -> None:
    """Python ignores SIGPIPE and SIGXFSZ; a shell's loop below it would write to a closed pipe for ever."""
    words = ["run"] if program == "mldebug" else []
    job = ["grep", "SigIgn", "/proc/self/status"]
    done = subprocess.run(
        [sys.executable, "-m", program, *words, "--", *job],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (
        int(done.stdout.split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0
    )
