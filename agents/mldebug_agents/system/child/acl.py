"""POSIX access lists: what the kernel would allow another user, computed by an agent whose own rights go further.

The list is that of acl(5), as the attribute `system.posix_acl_access` holds it: `HEAD`, then
`ENTRY` for each entry. Lists of other kinds (NFSv4, Windows) are evaluated by their server for
the user who opens the file, so they say nothing about another user.
"""

import errno
import os
import struct
from collections.abc import Collection

HEAD, ENTRY = struct.Struct("<I"), struct.Struct("<HHI")  # version; tag, permissions, id
_VERSION = 2
_USER, _OWNING_GROUP, _GROUP, _MASK, _OTHER = 0x02, 0x04, 0x08, 0x10, 0x20
_NONE = (errno.ENODATA, errno.EOPNOTSUPP)


def allows(handle: int, facts: os.stat_result, uid: int, groups: Collection[int], wanted: int) -> bool:  # fmt: skip
    """Whether a user who is not the owner has these rights (a sum of 4 read, 2 write, 1 search) to
    the file behind an O_PATH descriptor.

    `facts`: its stat; `uid`, `groups`: of the user. False where its list cannot be read.
    """
    try:
        entries = _entries(os.getxattr(f"/proc/self/fd/{handle}", "system.posix_acl_access"))
    except OSError as error:
        if error.errno not in _NONE:
            return False
        bits = facts.st_mode >> 3 if facts.st_gid in groups else facts.st_mode
        return bits & wanted == wanted
    except (ValueError, struct.error):
        return False
    mask = next((bits for tag, bits, _ in entries if tag == _MASK), 7)
    named = [bits & mask for tag, bits, number in entries if tag == _USER and number == uid]
    if named:
        return named[0] & wanted == wanted
    of_groups = [bits & mask for tag, bits, number in entries if (tag == _GROUP and number in groups) or (tag == _OWNING_GROUP and facts.st_gid in groups)]  # fmt: skip
    if of_groups:
        return any(bits & wanted == wanted for bits in of_groups)
    return any(tag == _OTHER and bits & wanted == wanted for tag, bits, _ in entries)


def _entries(data: bytes) -> list[tuple[int, int, int]]:
    """Tag, permissions and id of each; ValueError for a list of another version."""
    if HEAD.unpack_from(data) != (_VERSION,):
        raise ValueError("another kind of access list")
    return [(tag, bits, number) for tag, bits, number in ENTRY.iter_unpack(data[HEAD.size :])]
