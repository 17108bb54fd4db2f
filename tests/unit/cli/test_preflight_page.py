"""The page of `mldebug preflight` on terminals of 80 and of 60 columns: no line is wider, with the longest findings that there may be."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from processes.harness import clean_environment

LONG = "/lustre/projects/" + "large-language-models/" * 9 + "checkpoints-of-the-second-attempt"
NODES = "gpu[0-63,70-90,101,103,105-122,130]"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SENTENCES = (
    f"{LONG} has 29.9 MiB left of a quota, too little for 2 checkpoints of 400 GiB",
    f"{LONG}/データ/検査点 cannot be written: a test write failed: Read-only file system",
    "NCCL_IB_HCA was " + ",".join(f"mlx5_{port}:1" for port in range(40)) + ", is mlx5_0",
    "x" * 400,
    "the rendezvous gpu0-1.cluster.example.org:29500 is in use by python (pid 4194304) of user with-a-long-name",
)
SHOW = """
import msgspec, sys
from mldebug.probes.checks import NodeCheck
from mldebug.probes.preflight.findings import NodeFindings, Preflight, PreflightFinding
from mldebug_agents.cli.commands.probes.preflight import _show
sentences, nodes, alone = msgspec.json.decode(sys.argv[1])
findings = tuple(PreflightFinding(level="failed" if n % 2 else "note", sentence=one, nodes=nodes) for n, one in enumerate(sentences * 6))
checks = tuple(NodeCheck(stage="folders", state=state, sentence=one) for one in sentences for state in ("fine", "skipped"))
answers = (NodeFindings(node="n1", checks=checks),) * (1 if alone else 2)
_show(Preflight(go=False, verdict="no go: " + nodes, nodes=nodes, findings=findings, answers=answers))
"""


def shown(columns: int, alone: bool, home: Path) -> list[str]:
    """The lines that a terminal of so many columns gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    words = msgspec.json.encode((SENTENCES, NODES, alone)).decode()
    environ = clean_environment(home) | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen([sys.executable, "-c", SHOW, words], stdin=theirs, stdout=theirs, stderr=theirs, env=environ)  # fmt: skip
    os.close(theirs)
    found = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                found.extend(data)
        except OSError:  # EIO: nobody writes any more
            return

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(120)
    reader.join()
    os.close(ours)
    text = found.decode()
    assert code == 0, text
    return ESCAPES.sub("", text).replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("alone", [True, False])
def test_no_line_of_the_page_is_wider_than_the_terminal(
    columns: int, alone: bool, tmp_path: Path
) -> None:
    lines = shown(columns, alone, tmp_path)
    assert [line for line in lines if cell_len(line) > columns] == []
    assert sum(line.lstrip().startswith(("✘", "·")) for line in lines) == 24
    assert sum("6 more: --json has all" in line for line in lines) == 1
    assert any(line.endswith("x" * (columns - 10)) for line in lines), "a word without a gap is cut"
