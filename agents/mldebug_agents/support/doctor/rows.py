"""Checks of `mldebug doctor` that follow from one text or number alone. Pure, so that every branch can be tested."""

from typing import Literal

from mldebug import DISTRIBUTION
from mldebug.core.model import ReportData
from mldebug_agents.support.doctor.clock import ClockState
from mldebug_agents.support.doctor.rights import INITIAL_PID_NAMESPACE, USES

EARLIEST_NOW = 1_704_067_200.0  # 2024-01-01: a clock before this was never set
CONTAINER = "run on the host, or start the container with --pid=host --cap-add=SYS_PTRACE"
State = Literal["ok", "limited", "missing"]


class DoctorCheck(ReportData, frozen=True, kw_only=True):
    """A check of `mldebug doctor`: what was tried, the result, what it means, and how to get more."""

    name: str
    state: State
    meaning: str
    way_out: str = ""


def namesake(version: str) -> DoctorCheck:
    """The check that speaks where PyPI's other program called mldebug shares this environment. `version`: that program's."""
    return DoctorCheck(
        name="installation",
        state="limited",
        meaning=f"another program called mldebug ({version}) is in this environment, and may have replaced files of this one",
        way_out=f"pip uninstall mldebug {DISTRIBUTION}, then install {DISTRIBUTION} again",
    )


def installed_twice(version: str) -> DoctorCheck:
    """The check for a second installation of this program under the name that it had before it was called mldebug-agent. `version`: of that
    installation."""
    return DoctorCheck(
        name="installation",
        state="limited",
        meaning=f"it is installed twice, also under its earlier name mldebug ({version}): to uninstall one takes the other's files",
        way_out=f"pip uninstall mldebug {DISTRIBUTION}, then install {DISTRIBUTION} again",
    )


def yama(scope: int, held: frozenset[str]) -> DoctorCheck:
    """The check of what Yama's ptrace_scope allows."""
    name = "ptrace_scope"
    if scope == 0:
        return DoctorCheck(name=name, state="ok", meaning="0 or absent: same user is enough")
    if scope < 3 and "CAP_SYS_PTRACE" in held:
        return DoctorCheck(name=name, state="ok", meaning=f"{scope}, and CAP_SYS_PTRACE is held")
    if scope == 3:
        return DoctorCheck(
            name=name,
            state="missing",
            meaning="3: nobody may read stacks",
            way_out="set kernel.yama.ptrace_scope and reboot",
        )
    way_out = "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE"
    return DoctorCheck(
        name=name, state="missing", meaning=f"{scope}: the same user is not enough", way_out=way_out
    )


def capabilities(held: frozenset[str]) -> DoctorCheck:
    """The check of capabilities: which useful ones this process has, and what the others would allow."""
    lacking = [name for name in USES if name not in held]
    if not lacking:
        return DoctorCheck(name="capabilities", state="ok", meaning="all that are of use are held")
    have = [name for name in USES if name in held]
    meaning = f"held: {', '.join(have) or 'none'}; own processes need none"
    way_out = "; ".join(f"{name}: {USES[name]}" for name in lacking)
    return DoctorCheck(name="capabilities", state="limited", meaning=meaning, way_out=way_out)


def hidden_processes(mode: str, held: frozenset[str]) -> DoctorCheck:
    """The check whether the /proc mount hides processes of other users. `mode`: the value of its option `hidepid`, "" where it has none;
    `held`: the capabilities of this process, such as `CAP_SYS_PTRACE`.
    """
    if not mode or (mode != "4" and mode != "ptraceable" and "CAP_SYS_PTRACE" in held):
        return DoctorCheck(
            name="/proc",
            state="ok",
            meaning=f"hidepid={mode}, lifted by CAP_SYS_PTRACE"
            if mode
            else "all processes are listed",
        )
    way_out = (
        "mount -o remount,hidepid=0 /proc, or its gid= option with our group, or CAP_SYS_PTRACE"
    )
    return DoctorCheck(
        name="/proc",
        state="limited",
        meaning=f"hidepid={mode}: other users' processes are hidden",
        way_out=way_out,
    )


def container(namespace: str) -> DoctorCheck:
    """The check whether all processes of the node are visible, and not only those of a container."""
    if namespace == INITIAL_PID_NAMESPACE:
        return DoctorCheck(
            name="pid namespace",
            state="ok",
            meaning="the host's: every process of the node is seen",
        )
    return DoctorCheck(
        name="pid namespace",
        state="limited",
        meaning="a container's: only its processes are seen",
        way_out=CONTAINER,
    )


def clock(now: float, kernel: ClockState) -> DoctorCheck:
    """Check whether times of this node can be compared with those of other nodes. `now`: unix time."""
    if now < EARLIEST_NOW:
        return DoctorCheck(
            name="clock",
            state="missing",
            meaning="the clock was never set",
            way_out="start chrony or systemd-timesyncd",
        )
    if not kernel.known:
        return DoctorCheck(
            name="clock",
            state="limited",
            meaning="the kernel does not say whether it is synchronised",
        )
    if not kernel.synchronised:
        meaning = "not synchronised: times of several nodes may not fit together"
        return DoctorCheck(
            name="clock",
            state="limited",
            meaning=meaning,
            way_out="start chrony or systemd-timesyncd",
        )
    return DoctorCheck(
        name="clock", state="ok", meaning=f"synchronised, at most {kernel.error_seconds:.1g} s off"
    )
