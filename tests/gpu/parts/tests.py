"""tests/processes/hardware/test_gpu.py: the agent and `mldebug dump` on real NCCL jobs."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu import world

TESTS = "tests/processes/hardware/test_gpu.py"
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # whatever else that machine has
LIMIT = "MLDEBUG_GPU_TESTS"  # which of them: pytest's -k


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """Under pytest, with a plugin that makes the tree look installed."""
    wanted = os.environ.get(LIMIT, "")
    argv = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    argv += ["-p", "pytest_timeout", "-p", "gpu.installed"]
    argv += [TESTS, *(["-k", wanted] if wanted else [])]
    output = folder / "pytest.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            argv, stdout=log, stderr=log, cwd=world.ROOT, env=world.environment(folder, ALONE)
        )
        try:
            code = process.wait()
        finally:
            world.end(process)
            result = tail(output.read_text(errors="replace"))
            yield "output", result  # also when its time is over
    yield "exit", code
    assert code == 0, f"pytest ended with {code}"
    assert "skipped" not in result[-1], result[-1]


def tail(text: str) -> list[str]:
    """Its last line, and what each test said of itself."""
    lines = [line for line in text.splitlines() if line.strip()]
    matching = [
        line for line in lines if re.search(r"after the timeout:|^(FAILED|ERROR|E  )", line)
    ]
    return [line[:400] for line in (*matching, *lines[-3:])]
