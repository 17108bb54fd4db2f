"""Ranks that only wake up to look again, and one that works slowly."""

import json
import os
import queue
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from loop import events, main, rank, train
from torch.utils.file_baton import FileBaton


def on_rank_2(poll: Callable[[], object]) -> None:
    """Rank 2 alone polls, the others wait for it."""
    train(lambda: poll() if rank == 2 else None)


def wait_for_baton() -> None:
    path = events / "lock"
    path.touch()
    FileBaton(str(path), wait_seconds=0.1).wait()


def wait_for_file() -> None:
    while not os.path.exists(events / "index.done"):
        time.sleep(0.05)


def wait_for_json() -> None:
    while json.loads(Path(__file__).with_name("state.json").read_text()) != 1:
        time.sleep(0.02)


def get_with_timeout() -> None:
    batches: queue.Queue[int] = queue.Queue()
    while True:
        try:
            return print(batches.get(timeout=0.02))
        except queue.Empty:
            continue


def retry_download() -> None:
    while True:
        try:
            return print(urllib.request.urlopen("http://127.0.0.1:9/shard", timeout=1).read())
        except OSError:
            time.sleep(0.1)


def wait_for_flag() -> None:
    flag = threading.Event()
    while not flag.is_set():
        flag.wait(0.01)


def work_slowly() -> None:
    """A control: it computes at a tenth of a core for ever."""
    total = 0
    while total >= 0:
        until = time.thread_time() + 0.012
        while time.thread_time() < until:
            total += 1
        time.sleep(0.1)


if __name__ == "__main__":
    polls = (wait_for_baton, wait_for_file, wait_for_json, get_with_timeout, retry_download,
             wait_for_flag, work_slowly)  # fmt: skip
    main({poll.__name__: (lambda poll=poll: on_rank_2(poll)) for poll in polls})
