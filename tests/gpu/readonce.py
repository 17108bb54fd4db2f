"""Both reads of the GPUs once, and whether their events are told, as JSON: `python -m gpu.readonce` as any user.

With `--deny-writable-code` the kernel refuses memory that is or becomes executable after it was written, as for a service
with systemd's MemoryDenyWriteExecute.
"""

import ctypes
import os
import sys
import time

import msgspec

from gpu.eventset import registered
from mldebug_agents.hardware.gpu.nvml.library import LIBRARY, Library
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia

WINDOW = 0.3  # seconds: for the averages
DENY = "--deny-writable-code"
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1  # linux/prctl.h, since 6.3


def main() -> None:
    """Print them."""
    if DENY in sys.argv:
        deny_writable_code()
    library = Library(LIBRARY)
    reader = Nvidia(library)
    watch = reader.watch()
    reader.full()
    time.sleep(WINDOW)
    full = reader.full()
    facts = {"uid": os.geteuid(), "watch": watch, "full": full, "events": registered(library)}
    sys.stdout.write(msgspec.json.encode(facts).decode())
    reader.close()


def deny_writable_code() -> None:
    """For the rest of this process. Raises OSError where the kernel cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not deny writable code")


if __name__ == "__main__":
    main()
