"""Boots User Mode Linux, a kernel that is an ordinary program: for what the kernel of this machine may lack (quotas, NFS).

It needs Debian's package `user-mode-linux`, and no rights. Its root is this machine's, by hostfs; its first process is a Python script
of `tests/system/kernels`, which writes what it found as JSON and halts the machine.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.system.hung import missing
from shared.system.patience import PATIENCE

SCRIPTS = Path(__file__).parent / "kernels"
MEMORY = "1536M"
OWN_PATH = "MLDEBUG_TEST_KERNEL"  # of a linux.uml that is not installed


def boot(folder: Path, script: str, disks: Sequence[Path] = (), seconds: float = 240.0) -> Any:
    """What the script found. `disks`: images that are /dev/ubda, /dev/ubdb and so on there; `folder`: where it may write, too."""
    program = os.environ.get(OWN_PATH) or shutil.which("linux.uml")
    if program is None:
        missing("needs linux.uml, of the package user-mode-linux")
    modules = next(Path(str(program)).resolve().parents[1].glob("lib/uml/modules/*"), None)
    if modules is None:
        missing("needs the modules of user-mode-linux")
    result = folder / "found.json"
    argv = [
        *(str(program), f"mem={MEMORY}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw"),
        *(f"ubd{number}={disk}" for number, disk in enumerate(disks)),
        *("con=null", "con0=null,fd:1", "quiet", f"umid=mldebug-{os.getpid()}", f"uml_dir={folder}"),
        *(f"init={sys.executable}", "--", str(SCRIPTS / script), str(folder), str(modules)),
    ]  # fmt: skip
    with (folder / "console.log").open("wb") as console:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True)  # fmt: skip
        try:
            process.wait(seconds * PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait(10)
    tail = (folder / "console.log").read_text(errors="replace")[-4000:]
    assert result.exists(), f"the script has found nothing:\n{tail}"
    return json.loads(result.read_text())
