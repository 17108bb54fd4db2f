"""The fake library as a test steers it: build it, play a recording, lose a GPU, block, crash, wrap, raise an Xid."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from fakenvml.table import Table, answer, load, write

SOURCE = Path(__file__).with_name("fakenvml.c")
RECORDINGS = Path(__file__).parents[1] / "fixtures" / "h200"
XID = 8  # event types, as the driver numbers them
RECOVERY = 0x8000

BASIC = frozenset(
    f"nvml{name}"
    for name in (
        *("InitWithFlags", "Shutdown", "ErrorString", "SystemGetDriverVersion"),
        *("DeviceGetCount_v2", "DeviceGetHandleByIndex_v2", "DeviceGetUUID", "DeviceGetName"),
        *("DeviceGetPciInfo_v3", "DeviceGetUtilizationRates", "DeviceGetMemoryInfo"),
        *("DeviceGetPowerUsage", "DeviceGetTemperature"),
    )
)  # what a library of ten years ago has


@functools.cache
def build(omit: frozenset[str] = frozenset(), only: frozenset[str] | None = None) -> Path:
    """Compile the library, without the symbols of `omit`, or with those of `only` alone."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("no C compiler, so no fake libnvidia-ml: install gcc")
        pytest.skip("no C compiler, so no fake libnvidia-ml: install gcc")
    folder = Path(tempfile.mkdtemp(prefix="fakenvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    names = set(re.findall(r"\bnvml[A-Z]\w+(?=\()|(?<=\()nvmlDeviceGet\w+", SOURCE.read_text()))
    shown = (names if only is None else set(only)) - omit
    (folder / "symbols").write_text("{ global: " + "; ".join(sorted(shown)) + "; local: *; };\n")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    script = f"-Wl,--version-script={folder / 'symbols'}"
    subprocess.run(
        [*command, script, "-o", library, SOURCE, "-lpthread"], check=True, capture_output=True
    )
    return library


class FakeNvml:
    """One library and its table. Every change is seen by the next call into the library."""

    def __init__(
        self,
        folder: Path,
        recording: str = "training",
        *,
        omit: Iterable[str] = (),
        only: Iterable[str] | None = None,
    ) -> None:
        """`recording` is one of tests/fixtures/h200/nvml-*.json."""
        self.library = str(build(frozenset(omit), None if only is None else frozenset(only)))
        self.path = folder / "nvml.table"
        self.environment = {"FAKE_NVML": str(self.path)}
        self._calls = Path(f"{self.path}.calls")
        self._events = 0
        self._generation = 0
        self.table: Table = {}
        self.play(recording)

    def play(self, recording: str) -> None:
        """Serve a recording."""
        self.table = load(RECORDINGS / f"nvml-{recording}.json")
        for device in range(2):
            entry = self.table[f"nvmlDeviceGetMemoryInfo {device}"]
            self.table[f"nvmlDeviceGetMemoryInfo_v2 {device}"] = _with_reserved(entry)
        self._write()

    def grow(self, gpus: int) -> None:
        """So many GPUs, alike by turns to the two that were recorded; each has its own uuid."""
        for key, value in list(self.table.items()):
            function, _, rest = key.partition(" ")
            device, _, arguments = rest.partition(" ")
            if device in ("0", "1"):
                for other in range(int(device) + 2, gpus, 2):
                    self.table[" ".join(filter(None, (function, str(other), arguments)))] = value
        for number in range(gpus):
            self.table[f"nvmlDeviceGetUUID {number}"] = answer(0, f"GPU-{number}")
        self.set("nvmlDeviceGetCount_v2 -1", gpus)

    def set(self, key: str, *values: object, code: int = 0) -> None:
        """What a call answers from now on."""
        self.table[key] = answer(code, *values)
        self._write()

    def field(self, device: int, number: int, value: int, scope: int = 0, kind: int = 3) -> None:
        """What a field is from now on; kind 1 has 32 bits, 3 has 64, 5 is signed."""
        self.set(f"field {device} {number} {scope}", kind, value, 1)

    def fail(self, code: int, function: str = "*", device: int | str = "*") -> None:
        """Every call of the function for the device fails."""
        self.set(f"fail {function} {device}", code=code)

    def lose(self, device: int) -> None:
        """The GPU falls off the bus."""
        self.fail(15, device=device)

    def block(self, function: str, device: int | str = "*") -> None:
        """Calls do not come back until `release`."""
        self.table[f"block {function} {device}"] = ""
        self._write()

    def sink(self, function: str, device: int | str = "*") -> None:
        """Calls sit in state D until `release`."""
        self.table[f"sink {function} {device}"] = ""
        self._write()

    def hold(self, path: Path) -> None:
        """The library keeps that file open, as the real one keeps the device files of the driver."""
        self.set("device", path)

    def crash(self, function: str, device: int | str = "*") -> None:
        """Calls end the process by SIGSEGV."""
        self.table[f"crash {function} {device}"] = ""
        self._write()

    def release(self) -> None:
        """Nothing fails, blocks or crashes any more."""
        keep = ("nvml", "field", "gpm", "event", "generation", "device")
        self.table = {key: one for key, one in self.table.items() if key.startswith(keep)}
        self._write()

    def reload_driver(self) -> None:
        """Handles of before are worth nothing."""
        self._generation += 1
        self.set("generation", code=self._generation)

    def raise_event(self, device: int, data: int, kind: int = XID) -> None:
        """One event for whoever waits, of that kind."""
        self._events += 1
        self.set(f"event {self._events}", kind, data, code=device)

    def count_calls(self) -> None:
        """From now on, `calls` tells the functions that were called."""
        self._calls.write_text("")

    def calls(self) -> list[str]:
        """The functions that were called, in order."""
        return self._calls.read_text().split()

    def _write(self) -> None:
        write(self.table, self.path)


def _with_reserved(text: str) -> str:
    """The second version counts what the driver keeps for itself apart: 616 MiB, as nvidia-smi tells of that machine."""
    code, total, free, used = text.split("\t")
    reserved = min(616 << 20, int(used))
    return answer(int(code), total, free, int(used) - reserved, reserved)
