"""A light job (see light.py) whose rank 0 draws the bars of a library, BAR, into its log; it needs no PyTorch.

First a preparation for PREPARE seconds, in which all ranks compute. Then training: a step each 0.1 s, after every 40th an evaluation with a bar
of its own. Beside it two threads: one draws a bar for what it fetches, one redraws the last bar of the loop where that is late, as tqdm's monitor
does; both go on for ever. `step` beside the library has the step. With a file `hang` there it hangs as light.py does.
"""

import mmap
import os
import sys
import threading
import time
from pathlib import Path

TQDM = "  1%|          | {at}/{of} [00:30<12:00,  9.91it/s{more}]"
BARS = {  # training, evaluation
    "tqdm": (TQDM, "Evaluating: " + TQDM),
    "tqdm described": ("Training: " + TQDM, "Validating: " + TQDM),
    "lightning": ("Epoch 0: " + TQDM, "Validation DataLoader 0: " + TQDM),
    "keras": ("{at}/{of} \x1b[32m━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m1:05\x1b[0m 100ms/step - accuracy: 0.1{dashed}", "Evaluating: " + TQDM),
    "rich": ("\x1b[2KEpoch 0/9 \x1b[35m━━━━━━╸\x1b[0m━━━━━━━━ {at}/{of} 0:00:33 • 0:00:09 9.91it/s{spaced}", "\x1b[2KValidation ━━━━━━╸━━━━━━━━ {at}/{of} 0:00:33 • 0:00:09 9.91it/s"),
    "ultralytics": (
        "      1/100      10.4G     0.4635     0.2344      0.805       1578        640: 1% ╸─────────── {at}/{of} 9.9it/s 27.1s<20.9s",
        "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 1% ╸─────────── {at}/{of} 9.9it/s 27.1s<20.9s",
    ),
}  # fmt: skip
PREPARING = "Tokenizing train dataset: " + TQDM.replace("it/s", " examples/s")
FETCHING = "Prefetching shards: " + TQDM
EVERY, EVALUATED = 40, 30
LATE = 1.0  # seconds after which a monitor redraws


class Screen:
    """What is drawn, and what the monitor draws again."""

    def __init__(self, kind: str) -> None:
        self.training, self.evaluation = BARS[kind]
        self.last, self.drawn_at = "", time.monotonic()

    def draw(self, bar: str, at: int, of: int) -> str:
        loss = f"{9 - at / 1000:.4f}"
        text = bar.format(at=at, of=of, more=f", loss={loss}", dashed=f" - loss: {loss}", spaced=f" loss: {loss}")  # fmt: skip
        sys.stdout.write(f"\r{text}")
        sys.stdout.flush()
        return text

    def step(self, at: int) -> None:
        self.last, self.drawn_at = self.draw(self.training, at, 9000), time.monotonic()


def monitor(screen: Screen) -> None:
    """Draw the loop's bar again where it is late; for ever."""
    while True:
        time.sleep(LATE)
        if screen.last and time.monotonic() - screen.drawn_at > LATE:
            sys.stdout.write(f"\r{screen.last}")
            sys.stdout.flush()


def fetch(screen: Screen) -> None:
    """Draw a bar for something else; for ever."""
    for at in range(1, 100_000):
        screen.draw(FETCHING, at, 100_000)
        time.sleep(0.5)


def prepare(screen: Screen, seconds: float) -> None:
    end, at = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        at += 1000
        sum(range(300_000))
        if os.environ["RANK"] == "0":
            screen.draw(PREPARING, at, 9_000_000)


def train(screen: Screen, folder: Path) -> None:
    """Step until told to hang."""
    draws, step = os.environ["RANK"] == "0", 0
    if draws:
        threading.Thread(target=monitor, args=(screen,), daemon=True).start()
        threading.Thread(target=fetch, args=(screen,), daemon=True).start()
    while not (folder / "hang").exists():
        step += 1
        if draws:
            (folder / "next").write_text(str(step))
            (folder / "next").replace(folder / "step")
            screen.step(step)
            for at in range(EVALUATED if step % EVERY == 0 else 0):
                screen.draw(screen.evaluation, at + 1, 300)
                time.sleep(0.1)
        time.sleep(0.1)


def slow_data_loader() -> None:
    """Where the struck rank sits."""
    time.sleep(100_000)


def wait_for_peers(barrier: Path) -> None:
    """Where the others sit: a FIFO that nobody writes."""
    barrier.open("rb").read()


def main() -> None:
    """Prepare, train, hang."""
    library = Path(sys.argv[1])
    with library.open("rb") as file:
        kept = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    screen = Screen(os.environ["BAR"])
    prepare(screen, float(os.environ.get("PREPARE", "0")))
    train(screen, library.parent)
    slow_data_loader() if os.environ["RANK"] == "1" else wait_for_peers(library.parent / "fifo")
    kept.close()


if __name__ == "__main__":
    main()
