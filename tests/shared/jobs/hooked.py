"""Real processes with the hook that stand where a test wants them."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mldebug_agents.jobs.job_start import environment, hook_folder

RANK = """
    import os, sys, threading, time
    from mldebug_training.hook.process import own
    record = own.record
    def background():
        time.sleep(1000)
    def slow_data_loader():
        print(record.path, flush=True)
        time.sleep(1000)
    threading.Thread(target=background, daemon=True).start()
"""
SLEEPS = RANK + "    slow_data_loader()\n"
HOLDS = (
    RANK
    + """
    import ctypes
    def held():
        print(record.path, flush=True)
        ctypes.PyDLL(None).sleep(1000)  # with the interpreter lock; a signal would end it
    held()
"""
)
SHM = Path("/dev/shm")


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[str]]:
    """A rank with the hook that has come to its end; at the end it is gone, and so are its files."""
    env = {"PATH": os.environ["PATH"], "RANK": "0", "WORLD_SIZE": "1"}
    one = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], env=env | environment(env, hook_folder()),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert one.stdout is not None
        assert one.stdout.readline().startswith("/dev/shm/mldebug-")
        yield one
    finally:
        one.kill()
        one.wait(20)
        one.stdout.close()
        for path in SHM.glob(f"mldebug-{one.pid}-*"):
            path.unlink()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
