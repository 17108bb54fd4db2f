"""Runs an agent: from the forked helper process to the end by a signal."""

import logging
import sys
from collections.abc import Callable

from mldebug.config.schema import Config
from mldebug.core.errors import MldebugError
from mldebug_agents.agent.loop import AgentLoop
from mldebug_agents.agent.node_tools import CurrentConfig, NodeTools, open_tools
from mldebug_agents.agent.wiring import build_agent
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.service.shutdown import Shutdown
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.web.on_demand import OnDemandServer

log = logging.getLogger("mldebug")

LAST_WRITES = 0.8  # seconds for what waits to be written at the end
SWITCH = 0.001  # seconds after which a thread that computes lets another go on
"""A look at a node makes thousands of short system calls, and each lets the other threads go on: at Python's 5 ms a look at
3,000 processes took twice as long beside one thread that computes.
"""


def run(read: Callable[[], Config], spawner: Spawner) -> None:
    """Run an agent until a signal ends it. Raises MldebugError where it cannot go on.

    `read`: reads the configuration, now and at a SIGHUP; `spawner`: knows `CHILDREN`.
    """
    current = CurrentConfig(read())
    with open_tools(current, spawner=spawner) as tools:
        shutdown = Shutdown()
        shutdown.begin()
        serve(current, tools, shutdown, read)
    shutdown.leave()


def serve(
    current: CurrentConfig, tools: NodeTools, shutdown: Shutdown, read: Callable[[], Config]
) -> None:
    """Run the agent, its main loop and its HTTP server, until a signal ends it. Raises MldebugError
    where it cannot go on.

    `read`: reads the configuration again, at a SIGHUP.
    """
    sys.setswitchinterval(SWITCH)
    built = build_agent(current, tools, read)
    loop = built.loop
    shutdown.set_handlers(loop.stop, loop.ask_to_reload, lambda: _stuck(loop, tools))
    try:
        built.store.start()
        loop.run()
    except MldebugError as error:
        shutdown.hurry(error)
        raise
    finally:
        _end(tools, built.server, built.store)


def _end(tools: NodeTools, server: OnDemandServer, store: StateStore) -> None:
    """The children first: what waits for them comes back. Nothing here waits long."""
    tools.gpus.close()
    spawner = tools.context.spawner
    store.leave((*spawner.clear(spare=store.worker), *tools.gpus.leftovers()))
    server.stop()
    store.close(LAST_WRITES)
    for one in spawner.close():
        log.warning("left behind: %s", _named(one))


def _stuck(node: AgentLoop, tools: NodeTools) -> str:
    busy = [source.name for source in node.snapshot().sources if source.stuck or source.error]
    left = [_named(one) for one in tools.leftovers()]
    return "; ".join([*busy, *left]) or "threads do not come back"


def _named(one: Leftover) -> str:
    return f"pid {one.pid}, started {one.start_ticks} ticks after boot ({one.words})"
