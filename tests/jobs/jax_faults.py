"""One process of a JAX job on CPUs (collectives through gloo) that trains until the fault strikes its process 1.

Arguments: fault, folder for events, coordinator. Which process it is, and how many there are, the environment says.
"""

import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
ME, WORLD = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
AFTER = 5
STRUCK = 1


def announce(event: str, text: str = str(os.getpid())) -> None:
    """Leave a file that the test waits for, at once and whole."""
    temporary = FOLDER / f"new.{event}.{ME}"
    temporary.write_text(text)
    temporary.replace(FOLDER / f"{event}.{ME}")


def prepare_batch() -> None:
    """What the struck process does instead of training on."""
    announce("strike")
    if FAULT == "sleep":
        time.sleep(100_000)
    if FAULT == "loop":
        while True:
            pass
    if FAULT == "fifo":
        (FOLDER / "fifo").open().read()
    if FAULT == "raise":
        raise ValueError("shard 7: bad magic")
    if FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


def evaluate(step: jax.stages.Wrapped, batch: jax.Array) -> None:
    """Another branch, which one process alone takes: a gather in place of the sum."""
    announce("strike")
    multihost_utils.process_allgather(np.ones(3) * ME)


def train_step(step: jax.stages.Wrapped, batch: jax.Array) -> float:
    """A sum over all processes, and its value on the host."""
    return float(step(batch))


def main() -> None:
    """Train for ever."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[3], WORLD, ME)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    whole = np.ones(4 * WORLD, np.float32)
    batch = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
    step = jax.jit(lambda x: jnp.sum(x * 2.0))
    announce("started")
    number = 0
    while True:
        if number >= AFTER and ME == STRUCK:
            evaluate(step, batch) if FAULT == "branch" else prepare_batch()
        train_step(step, batch)
        number += 1
        announce("step", str(number))


main()
