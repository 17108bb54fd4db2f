"""`mldebug preflight` by hand, before a run: a real disk without room for its checkpoints."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from processes.harness import MLDEBUG, clean_environment
from shared.storage.disks import disk

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]


def preflight(folder: Path, *words: str) -> tuple[int, Any]:
    argv = [*MLDEBUG, "preflight", "--json", "--config", str(folder / "mldebug.yaml"), *words]
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=120, env=clean_environment(folder)
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def sentences(found: Any, level: str) -> list[str]:
    return [one["sentence"] for one in found["findings"] if one["level"] == level]


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody may mount here")
def test_a_disk_without_room_for_two_checkpoints_is_no_go(tmp_path: Path) -> None:
    (tmp_path / "mldebug.yaml").write_text(f"agent: {{state_dir: {tmp_path}/state}}\n")
    with disk(tmp_path, "ext4", size=400 << 20) as place:
        code, found = preflight(tmp_path, "--folder", str(place), "--checkpoint", "300MiB")
        assert (code, found["go"]) == (1, False)
        assert any(
            str(place) in one and "too little for 2 checkpoints of 300 MiB" in one
            for one in sentences(found, "failed")
        ), found
        assert {one.name for one in place.iterdir()} <= {"lost+found"}
        _, enough = preflight(tmp_path, "--folder", str(place), "--checkpoint", "10MiB")
        assert not any("too little" in one for one in sentences(enough, "failed")), enough
