"""How long tests wait for what must come, on this machine: a wait that ends later makes nothing wrong, a busy machine is no defect."""

import os
import subprocess
from typing import Any

# A factor; `.ci/run` shares two cores among seven parts and sets 3
PATIENCE = float(os.environ.get("MLDEBUG_TEST_PATIENCE", "1"))
# A deadline of so many seconds for a process is such a wait; a shorter one may be what a test is about
WAITS = 5.0


def patient(seconds: float | None) -> float | None:
    """Return how long to wait for a process, for whom a test gives it so many seconds."""
    return seconds * PATIENCE if seconds is not None and seconds >= WAITS else seconds


def be_patient_with_processes() -> None:
    """Let what waits for a process through `subprocess` do so for PATIENCE times as long.

    Nothing of mldebug that runs inside a test's process waits in this way: `system/spawn.py` has deadlines of its own.
    """
    if PATIENCE <= 1:
        return
    wait, communicate = subprocess.Popen.wait, subprocess.Popen.communicate

    def patient_wait(self: Any, timeout: float | None = None) -> int:
        return wait(self, patient(timeout))

    def patient_communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        return communicate(self, input, patient(timeout))

    subprocess.Popen.wait = patient_wait  # type: ignore[method-assign]
    subprocess.Popen.communicate = patient_communicate  # type: ignore[method-assign]
