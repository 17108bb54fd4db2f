"""What a signal handler of the job raises while our code runs reaches the job; errors of ours do not."""

import functools
import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mldebug_training.common import interrupted, signals
from mldebug_training.common.interrupted import pass_on
from unit.training.test_hook import PYTHONS, TELL, python, run, site, variables

__all__ = ["site"]
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
    "one that takes itself away": """def handler(*_):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        raise Late""",
    "one that names its number and takes itself away": """def handler(number, frame):
        signal.signal(number, signal.SIG_DFL)
        number = signal.Signals(number)
        raise Late""",
    "one that drops what it is given": """def handler(number, frame):
        del number, frame
        raise Late""",
}
BREAKS = "own.record.beat = own.record.write = strikes; "
CALLS = {
    "a step": BREAKS + "torch.optim.Optimizer().step()",
    "a heartbeat": BREAKS + "mldebug_training.heartbeat(7)",
    "a scalar": "mldebug_training.heartbeat(7, loss=Odd())",
    "a phase": BREAKS + """\n        with mldebug_training.phase("evaluate"): pass""",
    "a poll": """os.environ.pop("WORLD_SIZE")
        mldebug_training.Switches(os.getcwd(), reason=strikes).poll()""",
    "a print": "mldebug_training.rank_print(Odd())",
    "a print to a device": "os.write = strikes; mldebug_training.rank_print(7, file=os.open('/dev/null', os.O_WRONLY))",
    "a print to an odd file": "Odd.fileno = strikes; mldebug_training.rank_print(7, file=Odd())",
    "a memory guard": "builtins.open = strikes; mldebug_training.MemoryGuard().check()",
    "a sweep": "os.listdir = strikes; sweep()",
}
INTERRUPTED = """
    import builtins, signal, torch, mldebug_training
    from mldebug_training.hook.process import own
    from mldebug_training.common.shared_files import sweep
    class Late(TimeoutError): pass
    {handler}
    signal.signal(signal.SIGALRM, handler)
    def strikes(*_): signal.raise_signal(signal.SIGALRM)  # as if it had come while this ran
    class Odd(float):
        __str__ = __float__ = strikes
    try:
        {call}
        raised = False
    except Late:
        raised = True
    tell(raised=raised, phases=len(own._phases))
"""


@pytest.mark.parametrize(
    ("handler", "call"),
    [*((one, "a print") for one in HANDLERS), *(("a function", one) for one in CALLS)],
)
def test_what_a_handler_of_the_job_raises_while_we_run_reaches_the_job(
    site: Path, handler: str, call: str
) -> None:
    """A deadline by `signal.alarm` would be lost otherwise, and the job wait for ever."""
    result = interrupted_by(handler, call, sys.executable, site)
    assert (result["raised"], result["phases"]) == (True, 0)  # a phase that never began is not told


@pytest.mark.parametrize("version", PYTHONS)
def test_a_handler_is_known_by_its_call_in_every_python(site: Path, version: str) -> None:
    result = interrupted_by("one that takes itself away", "a print", python(version), site)
    assert result["raised"] is True


def interrupted_by(handler: str, call: str, interpreter: str, site: Path) -> Any:
    """What the job told; what its handlers raise elsewhere may go to stderr."""
    code = INTERRUPTED.replace("{handler}", HANDLERS[handler]).replace("{call}", CALLS[call])
    argv = [interpreter, "-c", TELL + textwrap.dedent(code)]
    done = subprocess.run(
        argv, env=variables(site), capture_output=True, text=True, timeout=60, check=False, cwd=site
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_rank_that_is_interrupted_while_it_is_armed_tells_its_steps_and_blocks_nothing(
    site: Path,
) -> None:
    code = """
        import faulthandler, signal, mldebug_training
        from mldebug_training.hook.process import own
        def handler(number, frame): raise TimeoutError
        signal.signal(signal.SIGALRM, handler)
        faulthandler.register = lambda *_, **__: signal.raise_signal(signal.SIGALRM)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            mldebug_training.heartbeat(1)
        except TimeoutError:
            mldebug_training.heartbeat(2)
        tell(step=own.record.step, same=before == signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    """
    done = run(site, code, RANK="", WORLD_SIZE="")  # so that the signals were not blocked before
    assert (done["step"], done["same"]) == (2, True)


def test_a_shield_that_is_interrupted_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = signals._signal.pthread_sigmask

    def interrupts(how: int, which: Any) -> Any:
        found = blocked(how, which)
        if which and how == signal.SIG_BLOCK:
            raise TimeoutError
        return found

    before = blocked(signal.SIG_BLOCK, ()), signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    monkeypatch.setattr(signals._signal, "pthread_sigmask", interrupts)
    try:
        with pytest.raises(TimeoutError):
            signals.shielded(signal.SIGPIPE, int)
        assert blocked(signal.SIG_BLOCK, ()) == before[0]
    finally:
        blocked(signal.SIG_SETMASK, before[0])
        signal.signal(signal.SIGPIPE, before[1])


# --- errors of ours ------------------------------------------------------------------------------


@contextmanager
def handled_by(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def test_our_own_errors_stay_with_us_though_the_job_has_handlers() -> None:
    def handler(*_: Any) -> None: ...

    with handled_by(handler):
        try:
            raise OSError("ours")
        except OSError as error:
            pass_on(error)
        pass_on(OSError("never raised"))


def walks(frame: FrameType, depth: int) -> None:
    raise KeyError(depth, frame)


def counts(_: int, __: int) -> None:
    raise KeyError


@pytest.mark.parametrize("arguments", [(walks, sys._getframe, 1), (counts, lambda: 1, 2)])
def test_who_is_handed_the_frame_of_his_caller_is_no_handler(
    arguments: tuple[Any, Any, Any],
) -> None:
    """As whatever walks the stack is."""
    function, first, second = arguments
    try:
        function(first(), second)
    except KeyError as error:
        pass_on(error)


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@logged
def handler(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


@logged
def ours() -> None:
    raise KeyError


def test_a_decorator_that_stands_around_a_handler_makes_no_handler_of_the_rest() -> None:
    with handled_by(handler):
        try:
            ours()
        except KeyError as error:
            pass_on(error)
        with pytest.raises(TimeoutError) as raised:
            signal.raise_signal(signal.SIGALRM)
        with pytest.raises(TimeoutError):
            pass_on(raised.value)


@pytest.mark.parametrize("odd", [None, 0, 1, signal.default_int_handler, object()])
def test_a_handler_without_python_code_is_none(odd: Any) -> None:
    assert interrupted._code(odd) is None
