"""Whether an exception was raised in code through which ranks talk to each other: by its innermost frame. Pure.

There an error of general type may tell of anybody, whatever its words. The innermost frame counts, and where it calls into native
code the call in its line of source: `comm.Allreduce(a, b)`.
"""

import re
from collections.abc import Sequence

from mldebug.diagnosis.exits.words.tracebacks import Traceback

_CODE = re.compile(
    r"(?:/|File \")(?:torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives|rendezvous|rpc/|elastic/|checkpoint/(?:utils|_async\w*)|_symmetric_memory|collective_utils)"
    r"|torch/_C/_distributed|torch/multiprocessing/spawn|torch/utils/data/\w{0,20}distributed|horovod/|mpi4py/|src/mpi4py/|deepspeed/comm/|deepspeed/elasticity"
    r"|jax/experimental/multihost_utils|jax/_src/distributed|ray/|monarch/|nvidia_resiliency_ext/|torchft/|deep_ep/|nixl\w{0,12}/|mooncake/|lmcache/|zmq/|grpc/|etcd\w{0,4}/"
    r"|orbax/checkpoint/[\w/]{0,80}multihost|orbax/checkpoint/utils|vllm/(?:v1/engine|v1/executor|executor|distributed)|sglang/srt/(?:distributed|managers)"
    r"|multiprocessing/(?:connection|managers|queues|synchronize)|asyncio/|concurrent/futures/|accelerate/utils/operations|transformer_engine/\w{1,40}/(?:distributed|module/base)"
    r"|tensorflow/python/distribute|pynccl\w{0,20}|cupyx?/(?:cuda/nccl|distributed)|socket\.py|ssl\.py)"
)
_CALL = re.compile(
    r"\b(?:all_?reduce|all_?gather\w{0,12}|reduce_?scatter\w{0,12}|all_?to_?all\w{0,8}|broadcast(?:_object_list)?|barrier|monitored_barrier|sync_global\w{0,12}|process_allgather"
    r"|init_process_group|wait_at_barrier|isend|irecv|TCPStore|ray\.get|blocking_key_value_get)\(",
    re.IGNORECASE,
)
_RAISED = re.compile(r"\s*(?:raise|assert)\b")


def in_group_code(lines: Sequence[str], found: Traceback) -> bool:
    """Whether the innermost frame of a traceback is in communication code, or calls it."""
    frames = [at for at in range(found.start, found.end) if 'File "' in lines[at]]
    if not frames:
        return False
    innermost = frames[-1]
    if _CODE.search(lines[innermost]):
        return True
    source = lines[innermost + 1] if innermost + 1 < found.end else ""
    return _CALL.search(source) is not None and not _RAISED.match(source)
