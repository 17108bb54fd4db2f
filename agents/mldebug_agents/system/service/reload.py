"""What a new configuration changes at once, and what only a restart changes: pure."""

from collections.abc import Iterable, Iterator

from mldebug.config.schema import Config
from mldebug.core.model import Remark
from mldebug_agents.system.child.leftovers import Leftover

_FIXED = (
    "agent.state_dir",
    "agent.listen",
    "agent.group",
    "agent.token_file",
    "logs",
    "gpus",
    "cluster",
)


def needs_restart(old: Config, new: Config) -> tuple[str, ...]:
    """Keys that have changed and that a running agent does not obey."""
    return tuple(name for name in _FIXED if _value(old, name) != _value(new, name))


def _value(config: Config, name: str) -> object:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def stuck_remarks(leftovers: Iterable[Leftover]) -> Iterator[Remark]:
    """What was started and can neither be used nor ended: evidence, and one child less."""
    for one in leftovers:
        message = (
            f"pid {one.pid} ({one.words}) of mldebug is stuck in the kernel and cannot be ended"
        )
        yield Remark(kind="leftover", message=message, pids=(one.pid,))
