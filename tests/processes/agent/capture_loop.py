"""Captures one job again and again in one process: a capture for each line on stdin, a line of JSON for each capture.

    python capture_loop.py PID

A line on stdin says which Python or native stacks are wanted: "never", "auto" or "always".
"""

import json
import sys
import time

import msgspec

from mldebug.config.schema import load_config
from mldebug_agents.agent.node_tools import CurrentConfig, open_tools
from mldebug_agents.incidents.manual import choose


def main() -> None:
    """Serve until stdin ends."""
    config = load_config(None)
    pid = int(sys.argv[1])
    current = CurrentConfig(config)
    with open_tools(current) as tools:
        for line in sys.stdin:
            wanted = msgspec.structs.replace(config.capture, watch=0.2, native=line.strip())
            current.replace(msgspec.structs.replace(config, capture=wanted))
            started = time.monotonic()
            found = tools.capture.finder.find()
            (job,) = choose(found, pid, None)
            capture = tools.capture.capturer().capture(
                job, found.children, found.remarks, found.gaps
            )
            stacks = {rank.identity.rank: len(rank.process.stacks) for rank in capture.ranks}
            native = {rank.identity.rank: len(rank.process.native) for rank in capture.ranks}
            gaps = [f"{gap.what}: {gap.reason}" for gap in capture.gaps]
            seconds = time.monotonic() - started
            facts = {"seconds": seconds, "stacks": stacks, "native": native, "gaps": gaps}
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
