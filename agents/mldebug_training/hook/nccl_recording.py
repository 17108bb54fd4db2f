"""Makes PyTorch record its NCCL collectives in versions before 2.11, which only do so if told.

Set after `import torch`, when the version is known, and long before a process group reads it; only in ranks, and only where the
user has set none of these variables. Gloo never reads them. Not used: the FIFO (`TORCH_NCCL_DEBUG_INFO_PIPE_FILE`), since its dump
gathers Python frames in the thread that ends hung jobs, waits there for the interpreter lock without a deadline, and a killed rank
leaves the FIFO behind; the hook gives the same without it. When and where PyTorch dumps at a timeout (`TORCH_NCCL_DUMP_ON_TIMEOUT`,
`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`) is not changed either, because people and tools look for dumps in the default place.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

OLD, NEW = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
CALLS = "2000"  # what PyTorch takes by itself since 2.11
RENAMED, ON_BY_DEFAULT = (2, 8), (2, 11)


def record_collectives(version: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Enable PyTorch's recording of collectives in `environ` (None: os.environ), where this version needs it. Nothing is set
    where it is on by default, the user has set it, or the version is unknown.
    """
    environ = os.environ if environ is None else environ
    number = _number(version)
    if number is None or number >= ON_BY_DEFAULT or OLD in environ or NEW in environ:
        return
    environ[NEW if number >= RENAMED else OLD] = CALLS  # the old name makes a newer one warn


def _number(version: str) -> tuple[int, int] | None:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    plain = major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()
    return (int(major), int(minor)) if plain else None
