"""Ranks that leave the common path: for a key of the store, an evaluation, an early stop, a join."""

import time

import torch
import torch.distributed as dist
from loop import log, main, rank, sync, train, world
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def key_never_set() -> None:
    """Ranks 1 to 3 wait for a key that rank 0 never sets."""
    store = dist.distributed_c10d._get_default_store()

    def wait_for_writer() -> None:
        if rank:
            store.get("checkpoint_written")

    train(wait_for_writer)


def evaluates_alone() -> None:
    """Rank 0 alone evaluates, with a collective in it."""

    def evaluate() -> None:
        if rank == 0:
            dist.all_gather_object([None] * world, {"accuracy": 0.5})

    train(evaluate)


def stops_early() -> None:
    """Rank 3 leaves the loop for the barrier at its end."""

    def finish() -> None:
        dist.barrier()

    for step in range(200):
        sync()
        log(step)
        time.sleep(0.2)
        if step == 30 and rank == 3:
            break
    finish()


def join_throws() -> None:
    """DDP's Join, told to raise on all ranks as soon as one has no more data; that is rank 2."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    with Join([model], throw_on_early_termination=True):
        for step in range(25 if rank == 2 else 60):
            model(torch.ones(2, 4)).sum().backward()
            time.sleep(0.3)
            log(step)


if __name__ == "__main__":
    main(
        {
            "key_never_set": key_never_set,
            "evaluates_alone": evaluates_alone,
            "stops_early": stops_early,
            "join_throws": join_throws,
        }
    )
