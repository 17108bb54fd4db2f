"""What to do where a command could not be run on a node, derived from the last line of the error output."""

import re

_WAYS_OUT = (
    (r"Permission denied", "let your key in there, or name one that is: transports: {ssh: {kind: ssh, options: -i FILE}}"),
    (r"Host key verification|IDENTIFICATION HAS CHANGED", "log in there once by hand, and compare the key"),
    (r"No module named|not found|No such file", "install mldebug there, or name its Python with --python"),
    (r"No such option|unexpected extra|no command", "install the mldebug of this node there, too"),
    (r"gres|overlap|unrecognized option", "say how: transports: {slurm: {kind: slurm, srun: [srun, …]}}"),
    (r"step creation|Unable to create step", "Slurm has no room for one more step: srun needs --overlap (Slurm 20.11 or later), or more time by --wait"),
)  # fmt: skip


def way_out(error: str) -> str:
    """A sentence on what helps against this error of ssh or srun; "" where none is known."""
    return next((way for pattern, way in _WAYS_OUT if re.search(pattern, error)), "")
