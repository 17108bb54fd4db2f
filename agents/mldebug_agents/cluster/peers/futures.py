"""Answers to who waits in another thread, and may have given up: then a future cannot be set any more."""

from concurrent.futures import Future
from typing import TypeVar

from mldebug.core.errors import MldebugError

T = TypeVar("T")


def give(answer: "Future[T]", value: T) -> None:
    """Answer it."""
    if answer.set_running_or_notify_cancel():
        answer.set_result(value)


def refuse(answer: "Future[T]", error: MldebugError) -> None:
    """Say why there is no answer."""
    if answer.set_running_or_notify_cancel():
        answer.set_exception(error)
