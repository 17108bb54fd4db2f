"""Ways to run one command on many nodes, one file each."""

from mldebug_agents.cluster.fanout.messages import Transport

__all__ = ["Transport"]
