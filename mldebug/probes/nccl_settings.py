"""Invalid values of NCCL's environment variables."""

import re
from collections.abc import Iterator, Mapping

_CHOICES = {
    "NCCL_ALGO": {"ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat"},
    "NCCL_PROTO": {"ll", "ll128", "simple"},
    "NCCL_DEBUG": {"version", "warn", "info", "trace", "none", "abort"},
}  # fmt: skip
_NUMBERS = re.compile(
    r"NCCL_(P2P_DISABLE|SHM_DISABLE|IB_DISABLE|NVLS_ENABLE|NTHREADS|MIN_CTAS|MAX_CTAS|MIN_NCHANNELS|MAX_NCHANNELS"
    r"|BUFFSIZE|IB_TIMEOUT|IB_RETRY_CNT|IB_GID_INDEX|CROSS_NIC|SOCKET_NTHREADS|NSOCKS_PERTHREAD)"
)


_NUMBER = re.compile(
    r"(?:[-+]?(?:\d{1,12}|0[xX][0-9a-fA-F]{1,12}))?"
)  # strtoll's; what is empty counts as not set


def invalid_settings(variables: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each NCCL variable with a value that NCCL does not understand.

    `variables`: values by name.
    """
    for name, value in variables.items():
        words = [one for one in re.split(r"[,;:]", value.lower().replace("^", "")) if one]
        legal = _CHOICES.get(name)
        if legal is not None and not legal.intersection(words):
            yield f"{name}={value} means nothing to NCCL, which knows {', '.join(sorted(legal))}"
        if _NUMBERS.fullmatch(name) and not _NUMBER.fullmatch(value.strip()):
            yield f"{name}={value} means nothing to NCCL, which wants a number"
