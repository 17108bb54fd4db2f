"""The process that rungs.py looks at: another user's rank, waiting, with a log, a FIFO, eight known bytes and the hook.

python stranger.py EVENTS      `mldebug_training` lies beside it, or in ../agents
"""

import ctypes
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "agents"))
from mldebug_training.hook.process import own

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
    own.beat(7)
    record = own.record
    (events / "hook").write_text(f"{record.path} {record.signal}" if record else "")
    (events / "ready").touch()
    wait_here()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
