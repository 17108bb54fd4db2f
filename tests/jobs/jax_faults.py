"""One process of a JAX job on CPUs (collectives through gloo) that trains until the fault strikes its process 1.

Arguments: fault, folder for events, coordinator. Which process it is, and how many there are, the environment says.
`coordinator` strikes process 0, in which JAX's coordination service runs.
"""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
ME, WORLD = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
AFTER = 5
STRUCK = 0 if FAULT == "coordinator" else 1
AGES = 100_000
batches: queue.Queue[int] = queue.Queue(2)


def announce(event: str, text: str = str(os.getpid())) -> None:
    """Leave a file that the test waits for, at once and whole."""
    temporary = FOLDER / f"new.{event}.{ME}"
    temporary.write_text(text)
    temporary.replace(FOLDER / f"{event}.{ME}")


def prepare_batch() -> None:
    """What the struck process does instead of training on."""
    announce("strike")
    if FAULT in ALONE:
        ALONE[FAULT]()
    if FAULT == "sleep":
        time.sleep(AGES)
    if FAULT == "loop":
        while True:
            pass
    if FAULT == "fifo":
        (FOLDER / "fifo").open().read()
    if FAULT == "raise":
        raise ValueError("shard 7: bad magic")
    if FAULT in ("killed", "coordinator"):
        os.kill(os.getpid(), signal.SIGKILL)


def read_feature(value: np.ndarray) -> np.ndarray:
    """What JAX calls on the host in the middle of a computation."""
    time.sleep(AGES)
    return value


def call_host() -> None:
    """A computation that waits for a function of the host, which never returns."""
    call = jax.jit(lambda x: jax.pure_callback(read_feature, jax.ShapeDtypeStruct((3,), np.float32), x))  # fmt: skip
    float(call(np.ones(3, np.float32))[0])


def trace_slowly() -> None:
    """A function that JAX traces reads something that never comes."""

    def layer(x: jax.Array) -> jax.Array:
        time.sleep(AGES)
        return x * 3.0

    jax.jit(layer)(np.ones(3))


def die_in_trace() -> None:
    """A crash while JAX traces a function."""

    def layer(x: jax.Array) -> jax.Array:
        os.kill(os.getpid(), signal.SIGSEGV)
        return x * 3.0

    jax.jit(layer)(np.ones(3))


def prefetch() -> None:
    """Fill the queue; the struck process's thread dies of an error."""
    for number in range(AGES):
        if ME == STRUCK and number == AFTER:
            raise OSError("shard-7.arrayrecord: unexpected end of data")
        batches.put(number)


def next_batch(number: int) -> None:
    """Take one of the queue."""
    if ME == STRUCK and number == AFTER:
        announce("strike")
    batches.get()


class Shards:
    """A data source of Grain of which one record never comes."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> np.ndarray:
        if index == 7:
            time.sleep(AGES)
        return np.ones(3)


def iterate_grain(workers: int) -> Iterator[np.ndarray]:
    """Grain's loader over them."""
    import grain.python as grain  # not everywhere where JAX is
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # its workers ask for them

    sampler = grain.SequentialSampler(64, grain.NoSharding())
    return iter(grain.DataLoader(data_source=Shards(), sampler=sampler, worker_count=workers))


def next_record(workers: int) -> None:
    """Records of it until the one that never comes."""
    for _ in iterate_grain(workers):
        pass


ALONE = {
    "callback": call_host,
    "trace": trace_slowly,
    "trace_dies": die_in_trace,
    "grain": lambda: next_record(0),
    "grain_worker": lambda: next_record(1),
    "global_barrier": lambda: multihost_utils.sync_global_devices("evaluated"),
    "broadcast": lambda: multihost_utils.broadcast_one_to_all(np.ones(3)),
    "service_barrier": lambda: client().wait_at_barrier("saved", AGES * 1000),
    "service_key": lambda: client().blocking_key_value_get("written", AGES * 1000),
}


def client() -> Any:
    """That of JAX's coordination service."""
    return jax._src.distributed.global_state.client


def wait_for_key() -> None:
    """All but the struck process wait for a key that it never sets: it sleeps."""
    announce("strike")
    time.sleep(AGES) if ME == STRUCK else client().blocking_key_value_get("written", AGES * 1000)


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
    if FAULT == "dead_thread":
        threading.Thread(target=prefetch, name="prefetcher", daemon=True).start()
    announce("started")
    number = 0
    while True:
        if number >= AFTER and FAULT == "key":
            wait_for_key()
        if FAULT == "dead_thread":
            next_batch(number)
        elif number >= AFTER and ME == STRUCK:
            evaluate(step, batch) if FAULT == "branch" else prepare_batch()
        train_step(step, batch)
        number += 1
        announce("step", str(number))


if __name__ == "__main__":
    main()
