"""The messages between the agent and its GPU reader, sent over a `ChildLink`."""

from typing import Literal

import msgspec

from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch

NAME = "gpus"  # of the worker that the process starter forks
MAX_BODY = 64 << 20

Wanted = Literal["watch", "full"]


class GpuRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the GPU child: read the GPUs of `vendor` (the name of a plugin, such as "nvidia"), whose settings are `options`, as msgpack."""

    number: int
    wanted: Wanted
    vendor: str
    options: msgspec.Raw = msgspec.Raw(b"\x80")
    excluded: tuple[ExcludedGpu, ...] = ()  # touch none of these


class GpuReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The child's answer to the request with the same number: a reading, or the reason why there is none."""

    number: int
    watch: NodeWatch | None = None
    full: NodeGpus | None = None
    trouble: Literal["", "no_library", "driver_gone", "broken"] = ""
    reason: str = ""
