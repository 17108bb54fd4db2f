"""Of what lies where a run writes nothing is deleted, changed or renamed: by no command about storage, by no page, and not by the agent."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from mldebug_agents.web.unix_http import UnixConnection
from processes.harness import Plan, folder_for, mldebug, wait_for
from processes.incidents.test_full_disks import FillingJob
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the job trains with PyTorch")

CONFIG = """\
storage: {{interval: 2s, canary: {{paths: ['{0}'], interval: 1s}}}}
trees: {{paths: ['{0}']}}
checkpoints: {{interval: 2s, settle: 5s, paths: ['{0}']}}
"""


class Kept(NamedTuple):
    """What must stay of one name in a tree; a folder's time may change, as a test write is made and removed in it."""

    mode: int
    owner: tuple[int, int]
    inode: int
    names: int
    size: int
    changed: int
    content: str


def tree(folder: Path) -> dict[str, Kept]:
    """All that lies below a folder, through no link."""
    return {str(one.relative_to(folder)): kept(one) for one in below(folder)}


def below(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *files))


def kept(path: Path) -> Kept:
    found = path.lstat()
    is_file = stat.S_ISREG(found.st_mode)
    content = os.readlink(path) if path.is_symlink() else ""
    if is_file:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    is_folder = stat.S_ISDIR(found.st_mode)
    size, changed = (0, 0) if is_folder else (found.st_size, found.st_mtime_ns)
    return Kept(found.st_mode, (found.st_uid, found.st_gid), found.st_ino, found.st_nlink, size, changed, content)  # fmt: skip


def strew(folder: Path) -> None:
    """What lies about beside checkpoints, and what somebody might take for litter, or for a test file of the agent."""
    (folder / "tmp-step-3.pt").write_bytes(bytes(4096))
    (folder / "step-1.pt.tmp.1234").write_bytes(bytes(4096))
    (folder / "core.1234").write_bytes(bytes(4096))
    (folder / ".mldebug-canary-other-0").write_text("of another node")
    (folder / ".mldebug-profile").write_text("not of mldebug")
    old = folder / "checkpoint-1"
    old.mkdir()
    (old / "model.safetensors").write_bytes(bytes(100))
    (folder / "empty").mkdir()
    (folder / "latest").symlink_to("step-10.pt")
    (folder / "gone").symlink_to("nowhere")
    os.link(folder / "core.1234", folder / "core.copy")
    os.mkfifo(folder / "pipe")


def pages(agent: RunningAgent) -> list[int]:
    """Ask for the pages about storage, and try to change something there; the answers' numbers."""
    requests = [
        ("GET", "/usage"), ("GET", "/storage"), ("GET", "/checkpoints"), ("DELETE", "/usage"), ("POST", "/usage"),
        ("POST", "/usage?delete=1"), ("DELETE", "/api/v1/usage"), ("PUT", "/usage"),
    ]  # fmt: skip
    found = []
    for method, path in requests:
        with closing(UnixConnection(agent.state)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
    return found


def test_nothing_is_deleted_where_a_run_writes() -> None:
    with folder_for(Plan().user) as folder, folder_for(Plan().user) as own:
        place = folder / "ckpt"
        config = settings(own) + CONFIG.format(place)
        job = FillingJob(folder, place, 1, "file")
        with watching(own, config) as agent:
            try:
                job.start()
                wait_for("four checkpoints", lambda: len(list(place.glob("step-*.pt"))) >= 4, 120)
            finally:
                job.end()
            strew(place)
            before = tree(folder)
            there = ("--config", str(agent.config))
            commands = (
                ("usage", str(place), "--keep", "1", *there),
                ("usage", str(folder), "--keep", "1", "--json", *there),
                ("usage", "--keep", "2", *there),
                ("checkpoints", str(place)),
                ("preflight", "--folder", str(place), "--checkpoint", "1MiB", *there),
                ("status", "--storage", *there),
                ("doctor", *there),
            )
            codes = {words: mldebug(job, *words).code for words in commands}
            assert set(codes.values()) <= {0, 1, 3}, codes
            answers = pages(agent)
            assert answers[:2] == [200, 200]
            assert min(answers[3:]) >= 400, answers
            reads = agent.snapshot()
            assert reads
            after_looks = reads.at + 20
            wait_for("more looks of the agent", lambda: agent.snapshot().at >= after_looks, 90)  # type: ignore[union-attr]
            rows = agent.snapshot().storage.rows  # type: ignore[union-attr]
            assert rows.get("test_writes"), (rows.keys(), "the agent writes its test file there")
        after = {name: one for name, one in tree(folder).items() if not is_own(name)}
        differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}  # fmt: skip
        assert differ == set()
        assert not [name for name in tree(folder) if is_own(name)], "the test file is removed"
        (place / "core.copy").unlink()
        assert tree(folder) != before, "the control: one name less is noticed"


def is_own(name: str) -> bool:
    """Whether this is a test file of the agent's own."""
    return name.startswith("ckpt/.mldebug-canary-") and not name.endswith("-other-0")
