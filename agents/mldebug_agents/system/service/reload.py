"""Which changes of the configuration need a restart, and remarks on children that hang. Pure functions."""

from collections.abc import Iterable, Iterator

from mldebug.config.schema import Config
from mldebug.core.model import Remark
from mldebug_agents.system.child.leftovers import Leftover

_FIXED = (
    "agent.state_dir",
    "agent.listen",
    "agent.group",
    "agent.token_file",
    "agent.join_containers",
    "agent.public_names",
    "logs",
    "gpus",
    "cluster",
    "fleet",
)


def needs_restart(old: Config, new: Config) -> tuple[str, ...]:
    """The config keys that differ and take effect only at a restart of the agent."""
    return tuple(name for name in _FIXED if _value(old, name) != _value(new, name))


def _value(config: Config, name: str) -> object:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def stuck_remarks(leftovers: Iterable[Leftover]) -> Iterator[Remark]:
    """A remark for each child process that hangs in the kernel and cannot be ended."""
    for one in leftovers:
        message = (
            f"pid {one.pid} ({one.words}) of mldebug is stuck in the kernel and cannot be ended"
        )
        yield Remark(kind="leftover", message=message, pids=(one.pid,))
