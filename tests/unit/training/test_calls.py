"""Calls that a thread makes: who asked waits no longer than it likes, and nothing breaks one off."""

import signal
import threading

import pytest

from mldebug_training.common.calls import BackgroundCall, LateError


def test_a_call_that_is_late_goes_on_and_is_heard_later() -> None:
    goes_on = threading.Event()
    call = BackgroundCall(lambda: goes_on.wait(20) and 3).start()
    with pytest.raises(LateError, match=r"no answer after 0\.01 s"):
        call.result(0.01)
    assert not call.wait(0.0)
    goes_on.set()
    assert [call.result(20), call.result(0.0)] == [3, 3]


def test_what_it_raises_reaches_whoever_asks() -> None:
    with pytest.raises(ZeroDivisionError):
        BackgroundCall(lambda: 1 // 0).start().result(20)


def test_a_handler_that_raises_ends_the_wait_and_not_the_call() -> None:
    goes_on = threading.Event()

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    call = BackgroundCall(lambda: goes_on.wait(20) and threading.current_thread().name).start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError):
            call.result(20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    goes_on.set()
    assert call.result(20) != threading.main_thread().name
