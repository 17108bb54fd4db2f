"""What the kernel lets this process do, from texts of /proc. Pure."""

import re

INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, the same on every kernel

_NAMES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
    "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN "
    "SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE "
    "MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)
CAPABILITIES = tuple(f"CAP_{name}" for name in _NAMES.split())

USES = {
    "CAP_SYS_PTRACE": "stacks of other users' processes",
    "CAP_DAC_READ_SEARCH": "with CAP_SYS_PTRACE: their environment, so their ranks are found",
    "CAP_SYSLOG": "the kernel log where dmesg_restrict is 1",
    "CAP_SYS_ADMIN": "kernel stacks in /proc/PID/stack",
    "CAP_KILL": "signals to other users' processes (undoing a stop)",
    "CAP_DAC_OVERRIDE": "writing another user's FIFO (Flight Recorder on demand)",
}


def held_capabilities(status: str) -> frozenset[str]:
    """Return the effective capabilities by name from the text of /proc/PID/status."""
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]{1,16})\s*$", status, re.MULTILINE)
    bits = int(match[1], 16) if match else 0
    return frozenset(name for bit, name in enumerate(CAPABILITIES) if bits >> bit & 1)


def ptrace_scope(text: str | None) -> int:
    """Return Yama's ptrace_scope (0 to 3) from its text; 0 where the file is absent, because the kernel then has no Yama."""
    return int(text) if text and text.strip() in ("0", "1", "2", "3") else 0


def hidepid(mountinfo: str, proc: str = "/proc") -> str:
    """Return how /proc hides other users' processes: "" for not at all, else `1`, `2`, `invisible` …"""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[4:5] == [proc] and right.startswith("proc "):
            match = re.search(r"\bhidepid=(\w+)", right)
            return match[1] if match and match[1] not in ("0", "off") else ""
    return ""


def owner(status: str) -> int | None:
    """Return the effective uid from the text of /proc/PID/status; None where it has no such line."""
    match = re.search(r"^Uid:\s*\d+\s+(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else None
