"""What a rank's hook answers to a request for its next steps, read from its file (layout: `mldebug_training.hook.on_request.requests`)."""

from typing import Annotated, Literal

import msgspec

from mldebug.capture.validation import decode_hook_file
from mldebug.core.redact import clean

REQUEST, ANSWER = ".request", ".answer"  # beside the record
MAX_ANSWER = 4096  # bytes
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Step = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]


class HookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to request `number`. `fd` and `bytes`: descriptor, in the process that answers, of the file with the
    result, and its size; `first` and `last`: the steps that were profiled; `starting`, `profiled`, `writing`: seconds that PyTorch's
    profiler took to begin, recorded, and took to write.
    """

    layout: int
    number: int
    state: Literal["accepted", "done", "declined"]
    why: Annotated[str, msgspec.Meta(max_length=400)] = ""
    fd: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] = -1
    bytes: Annotated[int, msgspec.Meta(ge=-1, le=2**40)] = -1
    first: _Step = -1
    last: _Step = -1
    starting: _Seconds = 0.0
    profiled: _Seconds = 0.0
    writing: _Seconds = 0.0

    @property
    def steps(self) -> int:
        """How many steps the result is of."""
        return max(0, self.last - self.first + 1)


def parse_answer(data: bytes) -> HookAnswer:
    """Parse the answer's file. Raises ValueError with the reason."""
    found = decode_hook_file(data, HookAnswer, MAX_ANSWER)
    return msgspec.structs.replace(found, why=clean(found.why, 300))
