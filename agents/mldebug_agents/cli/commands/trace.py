"""Trace the calls of a process into a ring, and read rings.

`mldebug trace run` starts a program whose latest Python calls are kept in a file of fixed size, the ring; the other
verbs show, export and merge such files.
"""

import click

from mldebug.capture.trace import verbs
from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs import trace_start


@click.group("trace", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Trace the calls of a process into a ring, and read rings.

    A ring is a file of fixed size that holds what a process did last. It survives the process, however that ended.
    """


for verb in (trace_start.run, verbs.show, verbs.export, verbs.merge):
    group.add_command(verb)


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug trace`: trace the calls of a process into a ring, and read rings."""
    return group
