"""Watches whether the sender of a request still waits for the answer: what takes minutes is ended as soon as the connection is closed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from mldebug_agents.system.gone import CURRENT, Gone

Messages = Callable[[], Awaitable[MutableMapping[str, Any]]]  # `receive` of ASGI


@asynccontextmanager
async def watched(receive: Messages) -> AsyncIterator[Gone]:
    """A context in which the connection of a request is watched, by what it `receive`s: what this yields says, to any thread, whether it was closed. `current` is
    the same, in threads of Starlette's pool, too.
    """
    gone = threading.Event()
    watch = asyncio.create_task(_wait(receive, gone))
    before = CURRENT.set(gone.is_set)
    try:
        yield gone.is_set
    finally:
        CURRENT.reset(before)
        watch.cancel()


async def _wait(receive: Messages, gone: threading.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of its body
    gone.set()
