"""Ranks with the hook whose traces of a few steps have 20 MiB even when they are compressed, as those of large models have.

PyTorch's profiler is real; what it would write is replaced by a trace with random words in it.
"""

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from mldebug_training import heartbeat

PARTS, EACH = 5_400, 4_096  # operators of the trace, random bytes in each


def write(_: Any, path: str) -> None:
    """In place of what PyTorch writes."""
    events = (
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 10 * number, "dur": 5, "pid": 1, "tid": 1,
         "args": {"words": base64.b64encode(os.urandom(EACH)).decode()}}
        for number in range(PARTS)
    )  # fmt: skip
    with Path(path).open("w") as file:
        file.write('{"traceEvents": [')
        file.writelines(
            f"{', ' if number else ''}{json.dumps(one)}" for number, one in enumerate(events)
        )
        file.write("]}")


def main() -> None:
    """Step for ever."""
    torch.profiler.profile.export_chrome_trace = write  # type: ignore[method-assign]
    step = 0
    while True:
        step += 1
        torch.ones(8).add(1)
        heartbeat(step)
        if os.environ["RANK"] == "0":
            print(f"step {step} loss 0.5", flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
