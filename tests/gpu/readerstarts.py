"""Fresh GPU readers, as the agent and the probes start them: how many die in their first reads.

    PYTHONPATH=.:agents:exporters:tests python3 -u tests/gpu/readerstarts.py 60

A vendor's library that overwrites memory ends the reader by a signal now and then; the agent lives on, but the read is lost. glibc's
checks show nearly every such write: LD_PRELOAD=libc_malloc_debug.so.0 MALLOC_CHECK_=3 PYTHONMALLOC=malloc before the command.
"""

import sys
import time
from collections import Counter

from mldebug.config.schema import load_config
from mldebug.core.errors import MldebugError
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.hardware.gpu.errors import GpuCrashedError
from mldebug_agents.hardware.gpu.reader import VendorReader

READS = 4


def start(tools: NodeTools) -> str:
    """One fresh reader: how it ended."""
    gpus = VendorReader(tools.context.spawner, tools.context.host)
    try:
        for _ in range(READS):
            gpus.full()
    except GpuCrashedError:
        return "died"
    except MldebugError as error:
        return error.message
    finally:
        gpus.close()
    return "well"


def main() -> int:
    """Count, and print as it goes."""
    starts, ended, began = int(sys.argv[1]), Counter[str](), time.monotonic()
    with open_tools(load_config(None), probes=True) as tools:
        for number in range(1, starts + 1):
            ended[start(tools)] += 1
            if number % 10 == 0:
                print(f"{number} starts, {time.monotonic() - began:.0f} s: {dict(ended)}", flush=True)  # fmt: skip
    return 1 if ended["well"] < starts else 0


if __name__ == "__main__":
    sys.exit(main())
