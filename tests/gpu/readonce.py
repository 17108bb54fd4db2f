"""Both reads of the GPUs once, and whether their events are told, as JSON: `python -m gpu.readonce` as any user."""

import os
import sys
import time

import msgspec

from gpu.eventset import registered
from mldebug_agents.gpus.nvidia import Nvidia
from mldebug_agents.nvml.library import LIBRARY, Library

WINDOW = 0.3  # seconds: for the averages


def main() -> None:
    """Print them."""
    library = Library(LIBRARY)
    reader = Nvidia(library)
    watch = reader.watch()
    reader.full()
    time.sleep(WINDOW)
    full = reader.full()
    told = {"uid": os.geteuid(), "watch": watch, "full": full, "events": registered(library)}
    sys.stdout.write(msgspec.json.encode(told).decode())
    reader.close()


if __name__ == "__main__":
    main()
