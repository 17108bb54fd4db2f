"""Start a program as another user with exactly some capabilities, as systemd's AmbientCapabilities= lends them."""

from typing import NamedTuple

OWNER, VISITOR = 61_101, 61_102  # nobody's numbers: no account is made
UNIT = ("sys_ptrace", "dac_read_search", "syslog")


class Column(NamedTuple):
    """Who looks: a user, and the capabilities that are lent."""

    uid: int
    capabilities: tuple[str, ...] = ()


def lent(column: Column) -> list[str]:
    """Root as it is, or any user with exactly these capabilities, as systemd lends them, and containers to root.

    Closing with `env`, since setpriv itself still starts its program with root's rights.
    """
    if column == Column(0):
        return ["env"]
    lent = ",".join(["-all", *(f"+{name}" for name in column.capabilities)])
    user = [f"--reuid={column.uid}", f"--regid={column.uid}", "--clear-groups", "--no-new-privs"]
    sets = [f"--inh-caps={lent}", f"--ambient-caps={lent}", f"--bounding-set={lent}"]
    return ["setpriv", *user, *sets, "env"]
