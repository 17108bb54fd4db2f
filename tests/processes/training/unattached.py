"""mldebug where the kernel lets nobody attach to a process: as under Yama's ptrace_scope 2, or in a container's sandbox.

    python unattached.py COMMAND ...    # as `mldebug COMMAND ...`

System calls that read or hold another process fail with EPERM, for this process and all its children (seccomp, which takes
no right to set up). What Yama closes in /proc beside them (`syscall`, `stack`, `mem`) is not read; py-spy, which would read
`mem` instead, may not seek.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable, Sequence

CALLS = {  # by machine: its number for audit, then those of the calls
    "x86_64": (
        0xC000003E,
        {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "lseek": 8},
    ),
    "aarch64": (
        0xC00000B7,
        {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "lseek": 62},
    ),
}
SAME = {"pidfd_send_signal": 424, "pidfd_getfd": 438}
ATTACHING = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | errno.EPERM


def deny(calls: Iterable[str]) -> None:
    """Have these system calls fail from now on, here and in all children. Raises OSError where that cannot be had."""
    machine, numbers = CALLS[os.uname().machine]
    denied = [(numbers | SAME)[name] for name in calls]
    code = [(LOAD, 0, 0, 4), (IF_EQUAL, 1, 0, machine), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, 0)]
    for number in denied:
        code += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL)]
    code.append((RETURN, 0, 0, ALLOW))
    rows = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in code))
    program = struct.pack("@HP", len(code), ctypes.addressof(rows))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((NO_NEW_PRIVS, 1, 0, 0, 0), (SECCOMP, FILTER, program, 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """Be `mldebug`, or the py-spy that it starts."""
    if sys.argv[1] == "py-spy":
        deny((*ATTACHING, "lseek"))
        os.execv(sys.argv[2], sys.argv[2:])
    deny(ATTACHING)
    from mldebug.cli.main import main as mldebug
    from mldebug_agents.system import procfs
    from mldebug_agents.system.reader import Reader
    from mldebug_agents.system.reader_answers import Unreadable
    from mldebug_agents.system.spawn import Spawner

    run = Spawner.run
    procfs.parse_syscall = lambda _: None
    procfs.parse_kernel_stack = lambda _: ()
    Reader.read_memory = lambda *_, **__: Unreadable("permission denied")  # type: ignore[method-assign]
    Spawner.run = lambda self, argv, **more: run(self, shim(argv), **more)  # type: ignore[method-assign]
    sys.exit(mldebug())


def shim(argv: Sequence[str]) -> list[str]:
    """py-spy by way of this file, in a Python that starts with little: there are hundreds of them."""
    name = os.path.basename(argv[0])
    return [sys.executable, "-IS", __file__, "py-spy", *argv] if name == "py-spy" else list(argv)


if __name__ == "__main__":
    main()
