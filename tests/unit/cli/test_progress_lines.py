"""Which commands may take more than two seconds, and that each of them says meanwhile on a terminal what it does."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from mldebug.core.plugins import load, names

ROOT = Path(__file__).parents[3]
SOURCES = {  # where a command's work is done, if not in its own file
    "probe": "agents/mldebug_agents/probes/session.py",
    "status": "agents/mldebug_agents/cli/node_search.py",
    "trace": "mldebug/capture/trace/verbs.py",
}
PRINTS_AS_IT_GOES = {"agent", "demo", "run", "top", "up", "web", "mcp", "hub"}
QUICK = {
    "check_config",
    "completion",
    "goodput",
    "share",
    "switch",
    "why",
}  # own files, or one question to the agent
AT_ONCE = """
import sys
from mldebug.core import progress
progress.LATE, progress.EVERY = 0.001, 0.05
from mldebug.cli.main import main
sys.argv = ["mldebug", *sys.argv[1:]]
sys.exit(main())
"""
TRACED = json.dumps({"version": "2.9", "entries": [{"frames": [], "state": "completed"}] * 20_000})


def source(verb: str) -> str:
    place = SOURCES.get(verb) or load("commands", verb.replace("-", "_")).__file__ or ""
    return (ROOT / place).read_text(encoding="utf-8")


def test_every_command_is_quick_or_prints_as_it_goes_or_has_a_line() -> None:
    verbs = set(names("commands"))
    assert not (QUICK | PRINTS_AS_IT_GOES) - verbs
    silent = {
        verb
        for verb in verbs
        if "progress_line(" not in source(verb) and "Waiting(" not in source(verb)
    }
    assert silent == QUICK | PRINTS_AS_IT_GOES


def on_a_terminal(*words: str, **more: str) -> str:
    """What a terminal is sent by a command whose line comes after a millisecond."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}
    with subprocess.Popen(
        [sys.executable, "-c", AT_ONCE, *words],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        shown = io.BytesIO()
        try:
            while some := os.read(ours, 65536):
                shown.write(some)
        except OSError:  # the other side is closed
            pass
        child.wait(60)
    os.close(ours)
    return shown.getvalue().decode(errors="replace")


@pytest.mark.parametrize(
    ("words", "doing"),
    [
        (("doctor",), "trying what works here"),
        (("slow",), "sampling the ranks"),
        (("dump",), "looking at all ranks on this node"),
        (("gpus", "list"), "reading the GPUs"),
        (("usage", "{here}"), "counting"),
        (("checkpoints", "{here}"), "reading the checkpoints"),
        (("diagnose", "{here}"), "reading the evidence"),
        (("flight-recorder", "{here}"), "reading the dumps"),
        (("logs", "try", "{here}/train.log"), "reading the log"),
        (("preflight",), "checking this node"),
        (("reports", "list"), "reading the reports"),
        (("support-bundle", "--for", "1s", "--out", "{here}/b.tar.gz"), "recording"),
    ],
)  # fmt: skip
def test_it_says_what_it_does_and_takes_it_away(
    tmp_path: Path, words: tuple[str, ...], doing: str
) -> None:
    (tmp_path / "train.log").write_text(
        "".join(f"step {n}/20000 loss 0.{n}\n" for n in range(20_000))
    )
    (tmp_path / "rank0.txt").write_text("Process 7: python train.py\n")
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(TRACED)
    shown = on_a_terminal(
        *(word.format(here=tmp_path) for word in words), XDG_STATE_HOME=str(tmp_path)
    )
    assert f"\r\x1b[K{doing}" in shown
    *_, end = shown.split("\r\x1b[K")
    assert " … " not in end.split("\n")[0]
