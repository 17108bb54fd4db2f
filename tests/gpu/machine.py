"""Where the validation ran: GPUs, driver, versions of what it is made of."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mldebug import __version__

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "nvidia-ml-py", "psutil", "py-spy", "msgspec", "prometheus-client")
TORCH = """
import json, torch
told = {"CUDA": torch.version.cuda or ""}
if torch.distributed.is_nccl_available():
    told["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(told))
"""


def machine() -> dict[str, Any]:
    """As `validation.json` has it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout
    except OSError as error:
        gpus = str(error)
    return {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "gpus": gpus.strip().splitlines(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {"mldebug": project(), **packages(), **of_torch()},
    }


def packages() -> dict[str, str]:
    """What is installed; nothing for what is not."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def of_torch(code: str = TORCH) -> dict[str, str]:
    """CUDA and NCCL as torch was built with them, asked in a child: torch is not loaded here."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)  # fmt: skip
        table: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return table


def project() -> str:
    """Its version, and its commit where git knows one."""
    git = shutil.which("git")
    if git is None:
        return __version__
    argv = [git, "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    commit = done.stdout.strip()
    return f"{__version__} ({commit})" if done.returncode == 0 and commit else __version__
