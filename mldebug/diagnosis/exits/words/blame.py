"""Whose failure the last words of a rank tell of: its own, somebody else's, or that is not said. Pure.

Whoever speaks first need not be to blame: a rank whose peer is gone says so before anybody else says anything. So words about a
peer, a store, a rendezvous or a watchdog never blame their speaker. An error of the rank's own device is its own failure also where
the watchdog's thread only passes it on. What neither says stays unclear, and names nobody with more than low confidence.

Sources of the words: PyTorch (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, ProcessGroupWrapper.cpp, TCPStore.cpp, elastic/rendezvous,
utils/data), NCCL (src/misc/socket.cc, src/transport/net_socket.cc, net_ib.cc), gloo (transport/tcp), Horovod, Open MPI, Ray, JAX's
coordination service (tsl/distributed_runtime), UCX, libfabric.
"""

import re
from enum import StrEnum


class Blame(StrEnum):
    """Whom an error accuses."""

    OWN = "own"
    PEER = "peer"  # another rank, or "some rank": the speaker is a victim
    UNCLEAR = "unclear"


# A broken device, or a kernel of the rank's own that failed; looked for first, since the watchdog passes them on
_DEVICE = re.compile(
    r"\b(?:CUDA|HIP) error:? (?!.{0,40}\bpeer\b)"
    r"(?:uncorrectable|an illegal|misaligned|device-side assert|unspecified launch|hardware stack|invalid (?:pc|address|device f)"
    r"|the launch timed out|no kernel image|invalid device ordinal|all CUDA-capable devices|unknown error|system not yet init"
    r"|CUBLAS|too many resources)"
    r"|\bXid\b|uncorrectable ECC|device-side assert triggered|CUDNN_STATUS_(?:EXECUTION|MAPPING)_FAILED"
)
# A file or disk that NCCL needs on this node
_OWN_NODE = re.compile(r"No space left on device|Too many open files|Cannot allocate memory")
_PEER = re.compile(
    # PyTorch's process groups
    r"Connection closed by (?:remote )?peer|Socket Timeout|Socket closed"
    r"|Timed out waiting \d+ ?ms for (?:recv|send) operation|[Aa]pplication timeout caused pair closure"
    r"|remote process exit|Watchdog caught collective operation timeout|watchdog got stuck for \d+ ?s"
    r"|ProcessGroupNCCL watchdog hang|NCCL communicator was aborted|watchdog thread terminated with exception"
    r"|failed to recv, got 0 bytes|Connection was likely closed|DistNetworkError|DistStoreError"
    r"|Detected mismatch between collectives on ranks|CollectiveFingerPrint"
    r"|monitored ?[Bb]arrier|enforce fail at .{0,200}gloo/|op\.preamble\.length"
    # stores and rendezvous
    r"|recvValue failed|sendBytes failed|wait timeout after \d+ ?ms|TCPStore.{0,60}timed? ?out"
    r"|\[c10d\] The client socket has (?:failed|timed out)|store based barrier|shared seed from the distri"
    r"|Rendezvous(?:Timeout|Closed|Connection|GracefulExit)\w{0,12}|rendezvous.{0,60}(?:timed? ?out|is closed)"
    # NCCL
    r"|ncclRemoteError|by a remote worker|socket(?:StartConnect|PollConnect|Progress|FinalizeConnect)\w{0,12}:"
    r"|Connect to \S{1,80} (?:failed|returned)|Net ?work is unreachable|No route to host"
    r"|Got completion from peer|net_ib.{0,80}\b(?:timeout|error)\b|Call to (?:connect|accept|recv|send)\w{0,8} returned"
    # Horovod, MPI, Ray, JAX, UCX, libfabric
    r"|HorovodInternalError|Horovod has been shut down|has lost communication with|MPI_ABORT was invoked"
    r"|ActorDiedError|RayActorError|The actor (?:died|is dead)|WorkerCrashedError|RayTaskError\(ActorDied"
    r"|JAX distributed service detected fatal errors|CoordinationService\w{0,20}|coordination (?:agent|service).{0,120}(?:error|unavailable|heartbeat)"
    r"|DEADLINE_EXCEEDED: .{0,40}Barrier|Barrier timed out|Endpoint timeout|Destination is unreachable|FI_ECONN\w{1,8}",
)
# What any socket may say, that of an object store too: a peer's only where words of a process group stand beside it
_SOCKET = re.compile(
    r"Connection (?:reset by peer|refused|timed out)|Broken pipe|Software caused connection abort"
)
_GROUP = re.compile(r"^(?:RuntimeError|torch\.)|gloo|c10d|nccl|Dist[A-Z]\w*Error", re.IGNORECASE)
# The job's own word that the reason lies elsewhere: ranks that agree to stop
_SECOND_HAND = re.compile(
    r"\b(?:another|other|some|remote|failed) (?:rank|worker|process|peer)|\bon (?:an)?other rank",
    re.IGNORECASE,
)
# NCCL gives no reason: it may be a peer, the network, the node
_NO_REASON = re.compile(
    r"unhandled system error|internal error - please report|ncclInternalError|unhandled (?:cuda|hip) error",
    re.IGNORECASE,
)
_REASON = re.compile(r"\b(?:Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'")


def blame_of(words: str) -> Blame:
    """Whom the whole text of an error accuses, its `Last error:` and chained causes included."""
    if _DEVICE.search(words):
        return Blame.OWN
    if _GROUP.search(words) and _OWN_NODE.search(words):
        return Blame.OWN
    if _PEER.search(words) or _SECOND_HAND.search(words):
        return Blame.PEER
    if _SOCKET.search(words) and _GROUP.search(words):
        return Blame.PEER
    silent = _NO_REASON.search(words) is not None and not _REASON.search(words)
    return Blame.UNCLEAR if silent else Blame.OWN
