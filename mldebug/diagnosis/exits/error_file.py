"""TORCHELASTIC_ERROR_FILE: the JSON that torch's `@record` writes when the main function of a rank raises. Pure.

`{"message": {"message": "ValueError: …", "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1763716000"}}}`
"""

import msgspec

from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.cuda_memory import device_memory
from mldebug.diagnosis.exits.last_words import MAX_LINES, blames_peer
from mldebug.diagnosis.exits.model import RankError
from mldebug.diagnosis.exits.nccl_errors import with_cause


def parse_error_file(data: bytes) -> RankError | None:
    """Return None for a file that is no such JSON."""
    try:
        told = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    message = told.get("message") if isinstance(told, dict) else None
    text, stack = message, ""
    if isinstance(message, dict):
        text = message.get("message")
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
    if not isinstance(text, str) or not text.strip():
        return None
    lines = stack.splitlines() if isinstance(stack, str) else []
    said = text.strip().splitlines()
    error = with_cause(safe_line(said[0], 300), said, 0)
    return RankError(
        error=error,
        lines=tuple(safe_line(line, 400) for line in lines[-MAX_LINES:] if line.strip()),
        source="its error file",
        blames_peer=blames_peer(text),
        memory=device_memory(text),
    )
