"""A pytest plugin for a machine where nothing of ours is installed: `mldebug` and the environment as if it were."""

import os
import shlex
import sys
import tempfile
from pathlib import Path

from processes import harness

KEPT = ("PYTHONPATH", "LD_LIBRARY_PATH", "NCCL_", "NVSHMEM_", "TORCH_", "CUDA_", "NVIDIA_")
_clean = harness.clean_environment


def clean_environment(home: Path) -> dict[str, str]:
    """What the tests take, with the sources and what this machine wants of NCCL."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    return kept | _clean(home)


def _programs() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mldebug-programs-"))
    for name, module in (("mldebug", "mldebug"), ("torchrun", "torch.distributed.run")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        script.chmod(0o755)
    return folder


harness.SCRIPTS = _programs()
harness.MLDEBUG = (str(harness.SCRIPTS / "mldebug"),)
harness.clean_environment = clean_environment
