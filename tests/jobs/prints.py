"""A rank without PyTorch that is well until a file `hang` lies where it stands: prints.py KIND TEXT

KIND `evaluation`: steps, then TEXT in an evaluation, which hangs. `background`: steps, with TEXT by another thread, which goes on while the
steps hang. `preparation`: TEXT before any step. STEP and NEXT in TEXT stand for a count, LOSS for a loss. It hangs in a read of its stdin.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator

PAUSE = 0.4  # seconds between two lines
STEPS_FIRST = 16


def count(text: str) -> Iterator[str]:
    """The text with a count that goes up."""
    step = 0
    while True:
        step += 1
        loss = f"{2 + 10 / step:.4f}"
        yield text.replace("STEP", str(step)).replace("NEXT", str(step + 1)).replace("LOSS", loss)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def work(turn: int) -> None:
    """Each time in another line, as a program that moves stands elsewhere in each stack sample."""
    sum(range(50_000))
    match turn % 6:
        case 0:
            time.sleep(PAUSE)
        case 1:
            time.sleep(PAUSE)
        case 2:
            time.sleep(PAUSE)
        case 3:
            time.sleep(PAUSE)
        case 4:
            time.sleep(PAUSE)
        case _:
            time.sleep(PAUSE)


def print_beside(text: str) -> None:
    for line in count(text):
        say(line)
        time.sleep(PAUSE)


def main() -> None:
    kind, text = sys.argv[1:]
    steps, lines = count("step STEP loss LOSS"), count(text)
    if kind == "background":
        threading.Thread(target=print_beside, args=(text,), daemon=True).start()
    for turn in range(1_000_000):
        trains = kind == "background" or (kind == "evaluation" and turn < STEPS_FIRST)
        say(next(steps if trains else lines))
        work(turn)
        if os.path.exists("hang"):
            os.read(0, 1)


main()
