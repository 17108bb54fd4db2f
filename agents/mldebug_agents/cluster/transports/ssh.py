"""By ssh to each node; in a tree of connections where the site has configured one for ClusterShell."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from ClusterShell.Defaults import config_paths

from mldebug.cluster.hostfile import NamedHosts, read_hosts
from mldebug.core.errors import ToolError
from mldebug.core.model import QueriedNode
from mldebug.core.units import Duration
from mldebug_agents.cluster.fanout.hints import way_out
from mldebug_agents.cluster.fanout.messages import FanoutOrder, FanoutPlan, FanoutRequest, Transport
from mldebug_agents.system.spawn import ProgramStarter

# behind a person's own options, of which the first counts. A master that stays behind would hold our pipes open; the rest
# is what an ssh_config may ask for and a capture has no use for.
PLAIN = "-oControlMaster=no -oClearAllForwardings=yes -oRequestTTY=no -oRemoteCommand=none -oServerAliveInterval=15"
LATE = 124  # of timeout(1)
SSH_FAILED = 255
_SILENT = re.compile(
    r"No route to host|Connection timed out|timed out during banner|Host is down|Network is unreachable"
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How ssh is called, in addition to ~/.ssh/config."""

    ssh: str = "ssh"  # the program
    options: str = ""  # more of its options: "-i ~/.ssh/cluster -p 2222"
    fanout: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64  # connections at once
    connect_timeout: Annotated[Duration, msgspec.Meta(ge=1)] = 10.0  # then a node is silent
    # auto: the site's own topology.conf of ClusterShell, where it has one
    tree: Literal["auto", "none"] | Path = "auto"


class SshTransport:
    """Reaches hosts that a user has named, by ssh."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def plan(self, wanted: FanoutRequest, starter: ProgramStarter) -> FanoutPlan:
        """The plan: one ssh connection for each node."""
        hosts = read_hosts(wanted.target)
        nodes = hosts.names
        chosen = self._options
        order = FanoutOrder(
            nodes=nodes,
            command=remote_command(wanted),
            timeout=wanted.timeout,
            fanout=max(chosen.fanout, len(nodes)) if wanted.together else chosen.fanout,
            connect_timeout=chosen.connect_timeout,
            ssh=chosen.ssh,
            ssh_options=" ".join(filter(None, (chosen.options, *_named(hosts), PLAIN))),
            topology=self._topology(),
            python=wanted.python,
        )
        return FanoutPlan(order=order, nodes=nodes)

    def _topology(self) -> str:
        """A gateway of the tree is trusted: what it sends is unpickled here. So only the site may name gateways."""
        if self._options.tree == "auto":
            return next((p for p in config_paths("topology.conf")[::-1] if os.path.exists(p)), "")
        if self._options.tree == "none":
            return ""
        if not os.path.exists(self._options.tree):
            raise ToolError(f"there is no {self._options.tree}", "correct transports.ssh.tree")
        return str(self._options.tree)

    def explain(self, plan: FanoutPlan, errors: Iterable[str]) -> Mapping[str, QueriedNode]:
        """Always empty: each node has its own ssh, so no error concerns several nodes."""
        return {}

    def ended(self, node: str, code: int, error: str) -> QueriedNode:
        """Return the node with the reason why it has not answered, from ssh's exit code and its last line on stderr:
        `silent` where nothing answered at its address, else `unable`.
        """
        if code == SSH_FAILED and _SILENT.search(error):
            return QueriedNode(name=node, state="silent", reason=_plain(error, node))
        return QueriedNode(
            name=node, state="unable", reason=why(code, _plain(error, node)), way_out=way_out(error)
        )


def _named(hosts: NamedHosts) -> tuple[str, ...]:
    """The user and the port that the list of hosts names."""
    user = f"-oUser={hosts.user}" if hosts.user else ""
    return user, f"-oPort={hosts.port}" if hosts.port else ""


def remote_command(wanted: FanoutRequest) -> str:
    """The command line for the remote login shell, whichever it is. It ends after its time limit even when the connection is
    gone.
    """
    limit = ("timeout", "-k", "5", f"{wanted.timeout:g}")
    return shlex.join((*limit, wanted.python, "-m", "mldebug", *wanted.arguments))


def why(code: int, error: str) -> str:
    """Return in a few words how ssh ended on a node, from its exit code and its last line on stderr."""
    if code == LATE:
        return f"mldebug was not done in time there{f': {error}' if error else ''}"
    if code == 0:
        return f"nothing came that mldebug could read{f': {error}' if error else ''}"
    return error or f"mldebug ended with {code} there, without a word"


def _plain(error: str, node: str) -> str:
    """Without what is different on each node, so that equal reasons fold: `ssh: connect to host a1 port 22: …`."""
    if re.match(rf"ssh: Could not resolve hostname {re.escape(node)}:", error):
        return "its name is not known here: is it spelt right?"
    return re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "it", error)


def create(options: Options) -> Transport:
    """Build the transport `ssh`: by ssh to each node; in a tree of connections where the site has configured one for ClusterShell."""
    return SshTransport(options)
