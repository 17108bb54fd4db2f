"""One process that is easy to harm: it gets into a delicate state, and must come out of it unharmed when released.

    python target.py KIND FOLDER [FILE]

It creates FOLDER/ready.KIND before, works in FOLDER/work.KIND, and creates FOLDER/done.KIND when it came to its end.
It goes on when FOLDER/release exists (spawn: when the FIFO is opened; stopped: at SIGCONT; read: when FILE answers).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def spawn(folder: Path, work: Callable[[], None], released: Callable[[], bool]) -> None:
    """State D: suspended by the kernel until its child has opened a FIFO."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    opening = (os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)
    child = os.posix_spawn("/bin/true", ["/bin/true"], {}, file_actions=[opening])
    os.waitpid(child, 0)


def stopped(folder: Path, work: Callable[[], None], released: Callable[[], bool]) -> None:
    """State T."""
    os.kill(os.getpid(), signal.SIGSTOP)


def read(folder: Path, work: Callable[[], None], released: Callable[[], bool]) -> None:
    """Blocked in a file system that does not answer."""
    with Path(sys.argv[3]).open("rb", buffering=0) as file:
        (folder / "opened").touch()
        while not (folder / "hang").exists():
            time.sleep(0.01)
        file.read(100)


def forking(folder: Path, work: Callable[[], None], released: Callable[[], bool]) -> None:
    """Forks children that exit at once."""
    while not released():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        work()
        time.sleep(0.005)


def exiting(folder: Path, work: Callable[[], None], released: Callable[[], bool]) -> None:
    """Starts Python children that live a moment."""
    while not released():
        subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(0.1)"], check=True)
        work()


def healthy(folder: Path, work: Callable[[], None], released: Callable[[], bool]) -> None:
    """Computes, sleeps and computes."""
    while not released():
        sum(range(20_000))
        work()
        time.sleep(0.005)


KINDS = {kind.__name__: kind for kind in (spawn, stopped, read, forking, exiting, healthy)}


def main() -> None:
    """Get into the state; announce before and after."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        temporary = folder / f"work.{kind}.new"
        temporary.write_text(str(count))
        temporary.replace(folder / f"work.{kind}")

    (folder / f"ready.{kind}").touch()
    KINDS[kind](folder, work, (folder / "release").exists)
    (folder / f"done.{kind}").touch()


if __name__ == "__main__":
    main()
