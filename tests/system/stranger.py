"""The process that rungs.py looks at: another user's rank, waiting, with a log, a FIFO and eight known bytes.

python stranger.py EVENTS
"""

import ctypes
import os
import sys
import time
from pathlib import Path

SECRET = ctypes.create_string_buffer(b"MLDEBUG!", 8)


def wait_here() -> None:
    time.sleep(1_000_000)


def main(events: Path) -> None:
    closed = events / "closed"
    closed.mkdir(mode=0o700)
    (closed / "job.log").touch(mode=0o600)
    (closed / "job.log").write_text("step 7\n")
    os.mkfifo(events / "debug.fifo", mode=0o600)
    os.open(events / "debug.fifo", os.O_RDWR | os.O_NONBLOCK)
    (events / "address").write_text(str(ctypes.addressof(SECRET)))
    (events / "ready").touch()
    wait_here()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
