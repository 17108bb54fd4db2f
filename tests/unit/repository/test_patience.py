"""Waits for what must come are as long as the machine is busy (tests/shared/system/patience.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import subprocess
from shared.system import patience
patience.WAITS = {waits}
patience.be_patient_with_processes()
subprocess.run(["sleep", "1"], check=True, timeout=0.1)
"""


@pytest.mark.parametrize(
    ("factor", "waits", "code"), [("600", 0.1, 0), ("600", 5.0, 1), ("1", 0.1, 1)]
)
def test_a_process_has_so_many_times_as_long(factor: str, waits: float, code: int) -> None:
    place = {"PYTHONPATH": str(Path(__file__).parents[2]), "MLDEBUG_TEST_PATIENCE": factor}
    command = [sys.executable, "-c", CHILD.format(waits=waits)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | place, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert ("TimeoutExpired" in done.stderr) == bool(code)
