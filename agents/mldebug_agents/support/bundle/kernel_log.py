"""Reads the kernel's log for a bundle: the raw records of the last hours, the newest of them where there are too many."""

import errno
import os
import time
from collections import deque
from collections.abc import Iterator

from mldebug.core.errors import AccessError, EvidenceError, MldebugError
from mldebug.hardware.kernel_log.records import parse_record

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
RECORD = 16 << 10  # bytes of one read
MAX_BYTES = 4 << 20
MAX_SECONDS = 5.0  # for a log that is written faster than it is read
HOURS = 6.0


def read_kernel_log(path: str, since: float, max_bytes: int = MAX_BYTES) -> bytes:
    """Records since `since` (seconds of the kernel's clock), joined. Of more than `max_bytes` the newest are kept. Raises
    MldebugError where it cannot be read.
    """
    kept: deque[bytes] = deque()
    size = 0
    for record in _records(path):
        parsed = parse_record(record)
        if parsed is None or parsed.seconds < since:
            continue
        kept.append(record)
        size += len(record)
        while size > max_bytes:
            size -= len(kept.popleft())
    return b"".join(kept)


def _records(path: str) -> Iterator[bytes]:
    """Each with the newline at its end."""
    try:
        handle = os.open(path, FLAGS)
    except OSError as error:
        raise _trouble(path, error) from error
    try:
        yield from _of(handle)
    except OSError as error:
        raise _trouble(path, error) from error
    finally:
        os.close(handle)


def _of(handle: int) -> Iterator[bytes]:
    deadline = time.monotonic() + MAX_SECONDS
    rest = b""
    while time.monotonic() < deadline:
        try:
            data = os.read(handle, RECORD)
        except BlockingIOError:
            return
        except BrokenPipeError:  # records were overwritten before we came
            continue
        except OSError as error:
            if error.errno == errno.EINVAL:  # a record that does not fit, passed over
                continue
            raise
        if not data:
            break
        *whole, rest = split_records(rest + data)
        yield from whole
        if rest.endswith(b"\n") and len(data) < RECORD:  # the device gives one record a read
            yield rest
            rest = b""
    if rest:
        yield rest


def split_records(data: bytes) -> list[bytes]:
    """Split the text of a kernel log into records, each with its continuation lines; the last one may be incomplete."""
    found: list[list[bytes]] = []
    for line in data.splitlines(keepends=True):
        if found and (line.startswith(b" ") or not found[-1][-1].endswith(b"\n")):
            found[-1].append(line)
        else:
            found.append([line])
    return [b"".join(lines) for lines in found] or [b""]


def _trouble(path: str, error: OSError) -> MldebugError:
    why = f"{path}: {(error.strerror or 'cannot be read').lower()}"
    if error.errno in (errno.EPERM, errno.EACCES):
        return AccessError(why, "run it as root, or with CAP_SYSLOG")
    return EvidenceError(why, "in a container, hand the node's /dev/kmsg to it")
