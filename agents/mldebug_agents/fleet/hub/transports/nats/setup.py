"""The stream in JetStream and the one consumer of all hubs: found, or made where there is none."""

from typing import Any

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import NotFoundError

from mldebug.fleet.batches import MAX_BATCH
from mldebug_agents.fleet.stream import STREAM, SUBJECTS

CONSUMER = "hubs"  # durable; all hubs take from it
ACK_WAIT = 30.0  # seconds after which a batch that was not acknowledged goes to another hub: longer than a store may take
MOST_BYTES = 1 << 30  # of the stream, while no hub lives
MOST_OF_A_NODE = 1000  # batches: no node fills the stream for the others
MOST_AT_HUBS = 2000  # batches that all hubs together have taken and not acknowledged
SAME = 120.0  # seconds within which a batch that comes twice is known


async def consumer_of(link: Any) -> Any:
    """The subscription from which batches are fetched. A stream that an operator has made (with replicas, in a cluster) is taken as it is."""
    stream = link.jetstream()
    try:
        await stream.stream_info(STREAM)
    except NotFoundError:
        await stream.add_stream(config=_stream())
    return await stream.pull_subscribe(f"{SUBJECTS}.>", CONSUMER, stream=STREAM, config=_consumer())


def _stream() -> StreamConfig:
    """What is acknowledged goes; what is full refuses, so that agents keep their events."""
    return StreamConfig(
        name=STREAM,
        subjects=[f"{SUBJECTS}.>"],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_bytes=MOST_BYTES,
        max_msgs_per_subject=MOST_OF_A_NODE,
        discard_new_per_subject=True,
        max_msg_size=MAX_BATCH,
        duplicate_window=SAME,
    )


def _consumer() -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=CONSUMER,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT,
        max_ack_pending=MOST_AT_HUBS,
        max_deliver=-1,
    )
