"""The tracer's writer in C, built for any Python that is here with its headers."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

SOURCE = Path(__file__).parents[3] / "deploy/training-native/mldebug_training_native.c"
ASK = "import sysconfig; print(sysconfig.get_paths()['include'])"


@cache
def native_folder(python: str = sys.executable) -> Path:
    """A folder for PYTHONPATH with the module for this Python; AssertionError where it cannot be built."""
    completed = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
    folder = Path(mkdtemp(prefix="mldebug-native-"))
    argv = ["cc", "-O2", "-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC"]
    argv += [f"-I{completed.stdout.strip()}", str(SOURCE)]
    argv += ["-Wno-unused-function", "-o", str(folder / "mldebug_training_native.so")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder
