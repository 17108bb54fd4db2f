"""Source lines that say what a rank waits for where the wait leaves no Python frame of its own."""

from mldebug.diagnosis.classify.tables.signs import I, NameSign, W, sign

LOOP_SOURCE: tuple[NameSign, ...] = (
    sign(
        "collective",
        W,
        "waits for a collective in {site}",
        r"\s*while\s+not\s+.*\.is_completed\s*\(\s*\)\s*:.*",
    ),
)
"""Lines that ask again and again, in Python: whoever owns the interpreter's lock there waits all the same."""

# The text of the innermost user line, for waits that leave no Python frame of their own.
SOURCE: tuple[NameSign, ...] = (
    sign(
        "device_sync",
        W,
        "waits for its GPU in {site}",
        r".*(\bcu(da)?\w*Synchronize|\.synchronize)\s*\(.*",
    ),
    *LOOP_SOURCE,
    sign(
        "lock",
        I,
        "waits for a lock in {site}",
        r".*\.acquire\s*\((?!.*(False|timeout|blocking)).*|\s*with\b.*[lL]ock\b.*:\s*(#.*)?",
    ),
)
STORE_SOURCE: tuple[NameSign, ...] = (
    sign(
        "store",
        W,
        "waits for a key of the store in {site}",
        r".*\b(?:\w*_)?store\.(?:get|wait|multi_get)\s*\(.*",
    ),
)
"""Asked before the wait channel: the client of a TCPStore polls or receives, as whoever waits for a stranger does."""
GPU_SOURCE: tuple[NameSign, ...] = (
    sign(
        "device_sync",
        W,
        "waits for its GPU in {site}",
        r".*(\.item|\.cpu|\.tolist|\.numpy|clip_grad_norm_|\.to)\s*\(.*",
    ),
)
