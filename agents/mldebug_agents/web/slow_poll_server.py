"""uvicorn's server with one turn a second instead of ten: each of an agent's doors cost 0.2 % of a core while nobody asked."""

import asyncio
from contextlib import suppress

import uvicorn

TURN = 1.0  # seconds; as often the Date header is made anew


class UnhurriedServer(uvicorn.Server):
    """Turns seldom and ends at once; `leave` may be called from any thread, before it runs as well."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = asyncio.Event()

    def leave(self) -> None:
        """End soon: no new connections, and open ones are closed."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._left.set)

    async def main_loop(self) -> None:
        """Replace uvicorn's, which looks ten times a second whether it should end."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), TURN)
