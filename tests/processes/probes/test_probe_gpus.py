"""What probes say where GPUs are too few, of no use, or unknown: a sentence, an exit code, no process left. PyTorch is a stand-in here."""

import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from processes.harness import MARK, SCRIPTS, clean_environment, light_python, marked, wait_for

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(120)]

TORCH = """
import sys, types
def answers(answer):
    return lambda *_: answer
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.__version__ = "2.0"
torch.version = types.SimpleNamespace(cuda={cuda!r}, hip=None)
torch.cuda = types.SimpleNamespace(device_count=answers({gpus}), nccl=types.SimpleNamespace(version=answers((2, 1))))
torch.distributed = types.SimpleNamespace(
    is_available=answers(True), is_gloo_available=answers(True), is_nccl_available=answers({nccl}))
"""
ONE = TORCH.format(cuda="12.8", gpus=1, nccl=True)
NONE = TORCH.format(cuda="12.8", gpus=0, nccl=True)
WITHOUT_NCCL = TORCH.format(cuda="12.8", gpus=2, nccl=False)
BESIDE = "--beside-jobs"
LIAR = """#!/bin/sh
case "$*" in
*facts*) echo '{"event":"facts","gloo":true}' ;;
*) echo '{"event":"cell","op":"all_reduce","bytes":"many"}'; exec sleep 1000 ;;
esac
"""


@pytest.mark.parametrize(
    ("torch", "words", "more", "code", "text"),
    [
        (NONE, "collectives --device cuda", {}, 3, "PyTorch 2.0 sees no GPU here"),
        (NONE, "isolate --device cuda", {}, 3, "PyTorch 2.0 sees no GPU here"),
        (NONE, "node --device cuda", {}, 3, "PyTorch 2.0 sees no GPU here"),
        (ONE, f"collectives --nproc 2 {BESIDE}", {}, 3, "2 ranks were wanted, and PyTorch sees 1 GPU here"),
        (ONE, f"isolate {BESIDE}", {}, 2, "there is nobody to compare with"),
        (ONE, f"isolate --nproc 3 {BESIDE}", {}, 3, "3 ranks were wanted, and PyTorch sees 1 GPU here"),
        (ONE, f"node --stages peers,nccl {BESIDE}", {}, 0, "peers: there is only one GPU"),
        (ONE, "collectives", {}, 3, "who computes on the GPUs is not known"),
        (ONE, "collectives --if-idle", {}, 3, "who computes on the GPUs is not known"),
        (WITHOUT_NCCL, f"isolate {BESIDE}", {}, 3, "PyTorch 2.0 has no NCCL"),
        (ONE, f"node {BESIDE}", {"NCCL_ALGO": "Rign"}, 2, "NCCL_ALGO=Rign means nothing to NCCL"),
        (ONE, f"isolate {BESIDE}", {"NCCL_PROTO": "LL9"}, 2, "NCCL_PROTO=LL9 means nothing to NCCL"),
        ("import sys; sys.modules['torch'] = None", "node --stages dram", {}, 3, "PyTorch does not work"),
    ],
)  # fmt: skip
def test_a_sentence_an_exit_code_and_nothing_left(
    tmp_path: Path, torch: str, words: str, more: Mapping[str, str], code: int, text: str
) -> None:
    fails(tmp_path, words, light_python(tmp_path, torch), more, code, text)


def test_a_python_that_says_what_no_rank_says_is_ended(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(LIAR)
    python.chmod(0o755)
    words = f"collectives --device cpu {BESIDE}"
    fails(tmp_path, words, python, {}, 2, "a line 'cell' is none that a probe's rank says")


def alone() -> list[str]:
    """What starts a program in a PID namespace of its own: this very process is a job to it, once any test has imported PyTorch."""
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    here = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc", *user]
    if subprocess.run([*here, "true"], check=False, capture_output=True).returncode:
        assert "CI" not in os.environ, "CI must be able to make a PID namespace"
        pytest.skip("this user may not make a PID namespace")
    return [*here, "sh", "-c", '"$@"; exit $?', "sh"]  # process 1 stays the shell


def fails(
    folder: Path, words: str, python: Path, more: Mapping[str, str], code: int, text: str
) -> None:
    """Type it: this exit code, this in one sentence, and nothing left. Code 0: it is no failure."""
    mark = uuid.uuid4().hex
    own = {MARK: mark, "MLDEBUG_PROBE_LOCK": str(folder / "lock")}
    done = subprocess.run(
        [*alone(), str(SCRIPTS / "mldebug"), "probe", *words.split(), "--python", str(python)],
        check=False, capture_output=True, text=True, timeout=100,
        env=clean_environment(folder) | own | more,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr
    sentences = [line for line in done.stderr.splitlines() if line.startswith("mldebug: ")]
    assert len(sentences) == (code != 0), done.stderr
    assert "Traceback" not in done.stderr
    wait_for("all processes to end", lambda: not marked(mark), 20)
