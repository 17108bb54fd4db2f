"""Reads the Flight Recorder of one backend by PyTorch's handler `fr_trace_json`, called in this process without a server or thread.

`nccl2`, which "nccl" means from PyTorch 2.15 on, has a recorder that no other call reaches. Written from PyTorch's source and **not
seen running**. Older versions have the handler and ignore the backend's name, so calls of other backends are left out here.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HANDLER = "fr_trace_json"
APART = ("nccl2",)  # backends whose recorder is their own


def recorded_by(backend: str) -> bytes:
    """The record of one backend as JSON; b"" where this PyTorch has no such handler, or the handler fails. Raises what PyTorch
    raises.
    """
    bindings = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
    find = getattr(bindings, "_get_handler", None)
    if find is None:
        return b""
    answer: dict[str, Any] = {}

    class HandlerRequest(bindings._Request):  # type: ignore[name-defined,misc]
        def body(self) -> bytes:
            return b""

        def get_param(self, name: str) -> str:
            return backend if name == "backend" else ""

    class HandlerResponse(bindings._Response):  # type: ignore[name-defined,misc]
        def set_content(self, content: Any, content_type: str) -> None:
            answer["content"] = content

        def set_status(self, status: int) -> None:
            answer["status"] = status

    find(HANDLER)(HandlerRequest(), HandlerResponse())
    content = answer.get("content", b"") if answer.get("status", 200) == 200 else b""
    return content.encode() if isinstance(content, str) else bytes(content)


def only_of(backend: str, dump: dict[str, Any]) -> dict[str, Any]:
    """A Flight Recorder dump without the calls of other backends."""
    calls = dump.get("entries") or []
    own = [call for call in calls if str(call.get("profiling_name")).startswith(f"{backend}:")]
    return {**dump, "entries": own}
