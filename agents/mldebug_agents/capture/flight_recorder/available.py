"""Gathers the facts that decide how a rank's Flight Recorder can be read: its backends (by the
names of its threads) and its worker servers.

The PyTorch version and the settings were read when the rank was found.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from mldebug.capture.flight_recorder.access import SOCKET, RankFacts
from mldebug.core.model import OpenFile, ProcessState, RankIdentity, ThreadState
from mldebug.jobs.known_issues.model import Software, parse_version
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.system.host import Host

SERVER_THREAD = "pt_workerserver"
BACKENDS = {"pt_nccl_watchdg": "nccl", "pt_nccl2_heartbt": "nccl2", "pt_gloo_runloop": "gloo"}
_LISTENS = "0A"  # of /proc/net/tcp
_HERE = {
    "0100007F": "127.0.0.1",
    "00000000": "0.0.0.0",  # noqa: S104 - read, not listened on
    "0" * 32: "::",
    "00000000000000000000000001000000": "::1",
}


def rank_facts(
    host: Host,
    rank: RankIdentity,
    program: Program,
    installed: Software,
    state: ProcessState | None = None,
    *,
    hooked: bool = False,
) -> RankFacts:
    """The facts of a rank that decide how its Flight Recorder can be read.

    `state`: the process with its threads and files, None where it is gone; `hooked`: it has
    mldebug's hook.
    """
    version = parse_version(installed.torch)
    threads = state.threads if state else ()
    return RankFacts(
        rank=rank.rank,
        torch=version.release[:2] if version else None,
        nccl=bool(program.libraries.nccl),
        environ=dict(program.recorder),
        hooked=hooked,
        backends=frozenset(BACKENDS[t.name] for t in threads if t.name in BACKENDS),
        servers=tuple(servers(host, rank.pid, state, program.recorder)) if state else (),
    )


def servers(host: Host, pid: int, state: ProcessState, environ: Mapping[str, str]) -> Iterator[str]:
    """The addresses at which the PyTorch worker server of rank `pid` can be asked: the path of a Unix socket (through the rank's /proc/PID/root),
    or `tcp:PORT:PID:ADDRESS`, with `pid` and the IP address on which it listens. Yields nothing where the rank has none.
    `state`: the rank's threads and open files; `environ`: its environment.

    Only a socket is given on which the thread of that server waits in accept(2), since a question to any other socket could do harm. Where the
    thread's system call may not be read, the socket that the variable TORCH_WORKER_SERVER_SOCKET names is given instead; the caller
    checks who listens there.
    """
    listening = [thread for thread in state.threads if thread.name == SERVER_THREAD]
    inodes = {_inode(thread, state.files) for thread in listening} - {""}
    if listening and not inodes and environ.get(SOCKET, "").startswith("/"):
        yield f"{host.root_of(pid)}{environ[SOCKET]}"
    for inode in sorted(inodes):
        yield from _unix(host, pid, inode)
        yield from _tcp(host, pid, inode)


def _unix(host: Host, pid: int, inode: str) -> Iterator[str]:
    for line in host.text(pid, "net/unix").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[6] == inode and words[7].startswith("/"):
            yield f"{host.root_of(pid)}{words[7]}"


def _tcp(host: Host, pid: int, inode: str) -> Iterator[str]:
    """On the loopback interface, or on all of them, of our own network namespace; nothing else can be reached."""
    if host.link(pid, "ns/net") != host.link(os.getpid(), "ns/net"):
        return
    for name in ("net/tcp", "net/tcp6"):
        for line in host.text(pid, name).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTENS and words[9] == inode:
                address, _, port = words[1].partition(":")
                if address in _HERE:
                    yield f"tcp:{int(port, 16)}:{pid}:{_HERE[address]}"


def _inode(thread: ThreadState, files: Sequence[OpenFile]) -> str:
    """The socket that this thread waits on for connections, "" where it does not, or may not be seen."""
    if thread.syscall not in ("accept", "accept4") or not thread.syscall_args:
        return ""
    target = next((file.target for file in files if file.fd == thread.syscall_args[0]), "")
    return target.removeprefix("socket:[").removesuffix("]") if target[:8] == "socket:[" else ""
