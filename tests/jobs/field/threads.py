"""Ranks whose own threads keep them: one that died, one that never ends, one that holds the interpreter's lock."""

import ctypes
import http.client
import os
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist
from loop import log, main, rank, sync, train, world

STEPS = range(200)


def gil_held() -> None:
    """A thread of rank 1 calls a C function with the interpreter's lock held."""

    def metrics_plugin() -> None:
        time.sleep(7)
        ctypes.PyDLL(None).sleep(100_000)

    if rank == 1:
        threading.Thread(target=metrics_plugin, name="gpu-metrics", daemon=True).start()
    train(lambda: None)


def reads_pipe() -> None:
    """Training runs in a thread; that of rank 2 reads a pipe into which nobody writes."""

    def read_batch() -> None:
        if rank == 2:
            os.read(os.pipe()[0], 1)

    name = "TrainingThread(train_fn_per_worker)"
    threading.Thread(target=lambda: train(read_batch), name=name).start()
    while True:
        time.sleep(1000)


def prefetcher_died() -> None:
    """The thread that fills rank 2's queue has died, and its main thread waits for the queue."""
    batches: queue.Queue[int] = queue.Queue(2)

    def prefetch() -> None:
        for number in range(4000):
            if rank == 2 and number == 32:
                raise OSError("shard-7.tar: unexpected end of data")
            batches.put(number)

    def next_batch() -> int:
        return batches.get()

    threading.Thread(target=prefetch, name="prefetcher", daemon=True).start()
    for step in STEPS:
        next_batch()
        sync()
        log(step)
        time.sleep(0.2)


def stuck_after_error() -> None:
    """Rank 2 raises, and cannot exit for a thread that waits for ever."""

    def prefetch() -> None:
        threading.Event().wait()

    threading.Thread(target=prefetch, name="prefetcher").start()

    def load() -> None:
        if rank == 2:
            raise ValueError("bad shard 7")

    train(load)


def swallowed() -> None:
    """Rank 2 prints the traceback of an error, and then waits for ever for what the error has cost it."""
    import traceback

    ready = threading.Event()

    def collate() -> None:
        if rank != 2:
            return
        try:
            raise KeyError("input_ids")
        except KeyError:
            traceback.print_exc()
        ready.wait()

    train(collate)


def upload() -> None:
    """Rank 0 joins a thread that uploads to a server without an answer."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()

    def upload() -> None:
        call = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1])
        call.request("POST", "/run", b"x" * 100)
        call.getresponse()

    def flush_metrics() -> None:
        if rank == 0:
            thread = threading.Thread(target=upload, name="uploader")
            thread.start()
            thread.join()

    train(flush_metrics)


def two_in_one_group() -> None:
    """A background thread and the main thread call collectives of one group, in another order on rank 1."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="AsyncCheckpointExecutor")

    def plan() -> None:
        if rank == 1:
            time.sleep(0.8)
        dist.all_gather_object([None] * world, {"rank": rank})

    def checkpoint() -> None:
        plans = pool.submit(plan)
        if rank != 1:
            time.sleep(0.4)
        dist.barrier()
        plans.result()

    train(checkpoint)


if __name__ == "__main__":
    main(
        {
            "trains": lambda: train(lambda: None),
            "gil_held": gil_held,
            "reads_pipe": reads_pipe,
            "prefetcher_died": prefetcher_died,
            "stuck_after_error": stuck_after_error,
            "swallowed": swallowed,
            "upload": upload,
            "two_in_one_group": two_in_one_group,
        }
    )
