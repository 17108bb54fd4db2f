"""How NVML, NVIDIA's management library, fails: which errors cost one value, which one GPU, and which all GPUs."""

UNSUPPORTED = frozenset(
    {2, 3, 13, 25}
)  # invalid argument, not supported, no such function, version
LOST = frozenset({15, 16, 28})  # the GPU is lost, needs a reset, is not found
DRIVER_GONE = frozenset({1, 9, 18})  # uninitialised, driver not loaded, another driver than library
UNKNOWN = 999
INSUFFICIENT_RIGHTS = 4

NAMES = {
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    6: "not_found",
    7: "insufficient_size",
    8: "insufficient_power",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_is_lost",
    16: "reset_required",
    17: "operating_system",
    18: "library_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    25: "version_mismatch",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    999: "unknown",
}
WORDS = {
    4: "not permitted to this user",
    9: "the NVIDIA driver is not loaded",
    14: "the board's InfoROM is corrupted",
    15: "the GPU is lost: it has fallen off the bus or does not answer any more",
    16: "the GPU needs a reset",
    18: "the loaded driver is another version than its library",
    28: "the GPU is not found",
    999: "the driver says only: unknown error",
}


class DeviceLostError(Exception):
    """One GPU does not answer; the other GPUs may still answer."""

    def __init__(self, code: int) -> None:
        super().__init__(in_words(code))
        self.code = code


def name_of(code: int) -> str:
    """The name of an error code of NVML, in small letters: `gpu_is_lost`."""
    return NAMES.get(code, f"error_{code}")


def in_words(code: int) -> str:
    """What an error code of NVML means, as a phrase for people."""
    return WORDS.get(code) or f"the driver says: {name_of(code).replace('_', ' ')}"
