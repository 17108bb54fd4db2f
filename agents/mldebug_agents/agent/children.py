"""What the child processes of an agent or a command run, by the name under which they are started.

Importing this module imports all that these children need, a third of what an agent does: its helper process, from which they
are forked, is forked right after it.
"""

import socket
from importlib import import_module

from mldebug_agents.capture.nccl_ras import child as ras_child
from mldebug_agents.cluster.peers.net import identity
from mldebug_agents.hardware.gpu.child import messages as gpu_messages
from mldebug_agents.hardware.gpu.child import server as gpu_server
from mldebug_agents.incidents import node_inspection
from mldebug_agents.jobs.hook import request_child, switches
from mldebug_agents.state import client as state_client
from mldebug_agents.state import server as state_server
from mldebug_agents.storage.child import client as filesystem_client
from mldebug_agents.storage.child import server as filesystem_server
from mldebug_agents.storage.dir_sizes import messages as dir_sizes_messages
from mldebug_agents.storage.usage import child as usage_child
from mldebug_agents.storage.usage import messages as usage_messages
from mldebug_agents.system.child.helper import Workers


def _inspect(connection: socket.socket) -> None:
    """The child that inspects ranks for others. It opens tools of its own, and is imported in the child only."""
    import_module("mldebug_agents.agent.inspection_child").serve(connection, CHILDREN)


def count_directories(connection: socket.socket) -> None:
    """The child that counts the sizes of directories. It needs watchdog, which is imported in the child only."""
    import_module("mldebug_agents.storage.dir_sizes.child").serve(connection)


CHILDREN: Workers = {
    node_inspection.NAME: _inspect,
    state_client.NAME: state_server.serve,
    gpu_messages.NAME: gpu_server.serve,
    switches.NAME: switches.serve,
    request_child.NAME: request_child.serve,
    ras_child.NAME: ras_child.serve,
    filesystem_client.NAME: filesystem_server.serve,
    identity.NAME: identity.serve,
    dir_sizes_messages.NAME: count_directories,
    usage_messages.NAME: usage_child.serve,
}
