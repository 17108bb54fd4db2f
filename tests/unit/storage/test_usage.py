"""Who uses what: the sums are those of `du`, limits are kept and told, and what must stay is never among what could go."""

import json
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.core.plugins import create_all
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.retention import could_go
from mldebug.storage.usage.lines import usage_lines
from mldebug.storage.usage.model import CountedFolder, CountedTree, PartFile, StorageUsage
from mldebug.storage.usage.tally import UsageTally, without_nested
from mldebug_agents.storage.usage import child
from mldebug_agents.storage.usage.answer import UsageAnswerer
from mldebug_agents.storage.usage.client import count_trees
from mldebug_agents.storage.usage.known_runs import KnownRun, processes
from mldebug_agents.storage.usage.messages import NAME, CountRequest
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import WORKERS, Spawner
from shared.storage.trees import du
from shared.system.hung import hung_mount, wait_until
from shared.system.patience import PATIENCE

HOUR = 3600.0


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner({**WORKERS, NAME: child.serve}) as made:
        yield made


def tensors(path: Path, hours_ago: float, size: int = 100_000) -> Path:
    """A whole checkpoint of one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"x" * size)
    at = time.time() - hours_ago * HOUR
    os.utime(path, (at, at))
    return path


def count(spawner: Spawner, *roots: Path, seconds: float = 30.0, most: int = 10**6, depth: int = 64) -> tuple[UsageTally, tuple[CountedTree, ...]]:  # fmt: skip
    tally = UsageTally()
    paths = tuple(os.fsencode(one) for one in roots)
    request = CountRequest(paths=paths, seconds=seconds, most=most, depth=depth)
    return tally, count_trees(spawner, request, tally)


def answer(spawner: Spawner, *roots: Path, runs: tuple[KnownRun, ...] = (), keep: int = 2) -> StorageUsage:  # fmt: skip
    tally, trees = count(spawner, *roots)
    with Reader(spawner) as reader:
        answerer = UsageAnswerer(reader, create_all("checkpoints"), tally, runs, str)
        return answerer.answer(trees, keep, time.time())


def names(found: StorageUsage) -> set[str]:
    return {Path(one.path).name for one in found.could_go}


# --- counting ------------------------------------------------------------------------------------


def test_the_sums_are_those_of_du_with_hard_links_once_and_sparse_files_by_blocks(spawner: Spawner, tmp_path: Path) -> None:  # fmt: skip
    tensors(tmp_path / "anna/run/ckpt/step_1.safetensors", 1)
    (tmp_path / "bob/deep/er").mkdir(parents=True)
    (tmp_path / "bob/one").write_bytes(b"x" * 50_000)
    os.link(tmp_path / "bob/one", tmp_path / "bob/deep/two")
    with (tmp_path / "bob/sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "bob/away").symlink_to("/usr")
    tally, (tree,) = count(spawner, tmp_path)
    assert (tree.inodes, tree.bytes) == du(tmp_path)
    assert tree.finished
    assert tree.bytes < 1 << 20
    (user,) = tally.users(str)
    assert (user.uid, user.bytes, user.inodes) == (os.getuid(), tree.bytes, tree.inodes)
    assert sum(one.bytes for one in tally.folders({}, str)) == tree.bytes


@pytest.mark.skipif(os.getuid() != 0, reason="other owners need root")
def test_each_owner_has_his_own_sum(spawner: Spawner, tmp_path: Path) -> None:
    for uid in (1001, 1002, 1002):
        path = tmp_path / f"of{uid}" / str(time.monotonic_ns())
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 8192)
        os.chown(path, uid, uid)
    tally, _ = count(spawner, tmp_path)
    found = {one.uid: (one.bytes, one.inodes) for one in tally.users(str)}
    assert found[1001] == (8192, 1)
    assert found[1002] == (16384, 2)


def test_where_it_stops_is_said(spawner: Spawner, tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        for number in range(600):
            (tmp_path / folder / str(number)).touch()
    _, (tree,) = count(spawner, tmp_path, most=700)
    assert not tree.finished
    assert 600 < tree.inodes < 1900
    assert str(tmp_path / "a") not in tree.unfinished
    assert tree.unfinished[-1] == str(tmp_path / "c")
    text = "\n".join(usage_lines(StorageUsage(now=0.0, trees=(tree,), users=(), keep=1)))
    assert f"counted {tree.inodes:,} inodes in" in text
    assert f"not finished: {tmp_path / 'c'}" in text


def test_what_lies_too_deep_is_said_and_not_entered(spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "1/2/3/4").mkdir(parents=True)
    _, (tree,) = count(spawner, tmp_path, depth=2)
    assert (tree.inodes, tree.too_deep) == (2, 1)


def test_a_directory_that_is_not_there_stops_no_other(spawner: Spawner, tmp_path: Path) -> None:
    _, trees = count(spawner, tmp_path / "no", tmp_path)
    assert trees[0].trouble == "No such file or directory"
    assert trees[1].finished


@pytest.mark.skipif(os.getuid() != 0, reason="mounts need root")
def test_a_mount_that_hangs_below_is_never_touched(spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "mounts").mkdir()
    with hung_mount(tmp_path / "mounts") as dead:
        dead.hang()
        began = time.monotonic()
        _, (tree,) = count(spawner, tmp_path)
    assert str(dead.target) in tree.other_filesystems
    assert tree.finished
    assert time.monotonic() - began < 5 * PATIENCE


@pytest.mark.skipif(os.getuid() != 0, reason="mounts need root")
def test_a_directory_that_hangs_itself_is_given_up_and_the_next_is_counted(spawner: Spawner, tmp_path: Path) -> None:  # fmt: skip
    other = tmp_path / "other"
    other.mkdir()
    with hung_mount(tmp_path) as dead:
        dead.hang()
        request = CountRequest(paths=(os.fsencode(dead.target), os.fsencode(other)))
        trees = count_trees(spawner, request, UsageTally(), patience=1.0)
    assert trees[0].trouble == "it does not answer"
    assert trees[1].finished


def test_the_child_has_idle_priority(monkeypatch: pytest.MonkeyPatch, spawner: Spawner, tmp_path: Path) -> None:  # fmt: skip
    worker = spawner.fork_worker(NAME)

    def idle() -> bool:
        if worker.pid is None or os.getpriority(os.PRIO_PROCESS, worker.pid) < 19:
            return False
        ionice = ["ionice", "-p", str(worker.pid)]  # set a moment after the other
        done = subprocess.run(ionice, capture_output=True, text=True, check=True)
        return done.stdout.strip() == "idle"

    wait_until(idle, 30.0)
    worker.kill()


def test_very_many_folders_count_for_those_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mldebug.storage.usage.tally.MAX_FOLDERS", 3)
    tally = UsageTally()
    for path in (b"/t", b"/t/a", b"/t/a/b", b"/t/a/b/c", b"/t/a/b/c/d"):
        tally.add(CountedFolder(path, {7: (10, 1)}, 10, 0.0))
    tally.tops.append("/t")
    (top, _) = sorted(tally.folders({}, str), key=lambda one: one.path)
    assert [one.bytes for one in tally.users(str)] == [50]
    assert top.bytes == 10


def test_nested_directories_are_counted_once() -> None:
    assert list(without_nested(["/a/b", "/a", "/ab", "/a"])) == ["/a", "/ab"]


def test_checkpoint_files_are_told_one_by_one_and_shards_together() -> None:
    tally = UsageTally()
    part = PartFile(b"model.safetensors", 100, 100, 1, 5.0)
    tally.add(CountedFolder(b"/o/step_1", {1: (150, 2)}, 150, 5.0, (part,)))
    tally.add(CountedFolder(b"/o", {1: (40, 2)}, 20, 5.0, (PartFile(b"ckpt_10_rank0.pt", 10, 10, 1, 5.0), PartFile(b"ckpt_10_rank1.pt", 20, 0, 1, 6.0))))  # fmt: skip
    found = tally.checkpoints()
    assert found["/o", "step_1"].bytes == 150
    both = found["/o", "ckpt_10_rank#.pt"]
    assert (both.bytes, both.own, both.inodes, both.newest) == (30, 10, 2, 6.0)


# --- which could go ------------------------------------------------------------------------------


def known(step: int, state: Completeness = Completeness.COMPLETE, ended: float | None = None) -> KnownCheckpoint:  # fmt: skip
    return KnownCheckpoint(name=f"step_{step}", state=state, step=step, ended=float(step if ended is None else ended))  # fmt: skip


def gone(*checkpoints: KnownCheckpoint, keep: int, **needed: str) -> list[int | None]:
    return [one.step for one in could_go(checkpoints, keep, needed)]


def test_the_newest_whole_ones_stay_and_what_is_newer_too() -> None:
    many = [known(step) for step in range(1, 6)]
    assert gone(*many, keep=1) == [1, 2, 3, 4]
    assert gone(*many, keep=3) == [1, 2]
    assert gone(*many, keep=9) == []
    newer = [known(6, Completeness.INCOMPLETE), known(7, Completeness.WRITING), known(8, Completeness.UNKNOWN)]  # fmt: skip
    assert gone(*many, *newer, keep=1) == [1, 2, 3, 4]


def test_of_a_series_without_a_whole_one_nothing_goes() -> None:
    assert gone(known(1, Completeness.UNKNOWN), known(2, Completeness.INCOMPLETE), keep=1) == []


def test_a_cut_one_goes_before_the_newest_whole_one_and_one_not_known_before_all_that_stay() -> None:  # fmt: skip
    cut, unsure = known(3, Completeness.INCOMPLETE), known(2, Completeness.UNKNOWN)
    assert gone(cut, unsure, known(4), keep=2) == [3]
    assert gone(cut, unsure, known(4), known(5), keep=2) == [2, 3]
    assert gone(known(3), known(4, Completeness.UNKNOWN), known(5), keep=2) == []


def test_where_a_run_went_back_to_an_earlier_step_newest_is_meant_both_ways() -> None:
    again = (known(100, ended=1.0), known(200, ended=2.0), known(50, ended=3.0), known(60, ended=4.0))  # fmt: skip
    assert gone(*again, keep=1) == [100] or gone(*again, keep=1) == []
    assert 200 not in gone(*again, keep=1)
    assert 60 not in gone(*again, keep=1)


def test_what_is_needed_stays() -> None:
    assert gone(known(1), known(2), known(3), keep=1, step_1="a run") == [2]


def test_a_retention_frees_what_lies_on_disk_less_what_has_other_names(spawner: Spawner, tmp_path: Path) -> None:  # fmt: skip
    saves = tmp_path / "run/checkpoints"
    for step in range(1, 6):
        tensors(saves / f"step_{step}.safetensors", 10 - step)
    (tmp_path / "keep").mkdir()
    os.link(saves / "step_1.safetensors", tmp_path / "keep/data.bin")
    found = answer(spawner, tmp_path, keep=2)
    each = next(one.bytes for one in found.could_go if one.path.endswith("step_2.safetensors"))
    assert names(found) == {f"step_{step}.safetensors" for step in (1, 2, 3)}
    assert {one.keep: one.frees for one in found.retention} == {1: 3 * each, 2: 2 * each, 3: each, 5: 0}  # fmt: skip
    (run, *_) = (one for one in found.folders if one.has_checkpoints)
    assert run.path == str(tmp_path / "run")
    assert (saves / "step_1.safetensors").exists()


def test_what_a_run_named_or_resumed_from_a_link_or_the_best_stay(spawner: Spawner, tmp_path: Path) -> None:  # fmt: skip
    for step in range(1, 8):
        tensors(tmp_path / f"step_{step}/model.safetensors", 10 - step)
    (tmp_path / "best").symlink_to("step_2")
    state = tmp_path / "step_7/trainer_state.json"
    state.write_text(json.dumps({"best_model_checkpoint": "out/step_4"}))
    at = time.time() - 3 * HOUR
    os.utime(state, (at, at))
    began = time.time() - 6.5 * HOUR  # after step 3
    run = KnownRun(title="r", started_at=began, folders=(str(tmp_path),), named=(f"{tmp_path}/step_1",))  # fmt: skip
    assert names(answer(spawner, tmp_path, keep=1)) == {"step_1", "step_3", "step_5", "step_6"}
    found = answer(spawner, tmp_path, keep=1, runs=(run,))
    assert names(found) == {"step_5", "step_6"}
    assert {Path(one.path).name for one in found.needed} == {"step_1", "step_2", "step_3", "step_4"}  # fmt: skip


def test_what_any_process_has_on_its_command_line_stays(spawner: Spawner, tmp_path: Path) -> None:
    for step in range(1, 4):
        tensors(tmp_path / f"step_{step}/model.safetensors", 10 - step)
    words = b"serve\0--model=" + os.fsencode(tmp_path) + b"/step_1/\0--port\x0080"
    run = processes(Host(), {os.getpid(): words})
    assert names(answer(spawner, tmp_path, keep=1)) == {"step_1", "step_2"}
    assert names(answer(spawner, tmp_path, keep=1, runs=(run,))) == {"step_2"}


def test_every_line_of_a_table_fits_into_80_columns(spawner: Spawner, tmp_path: Path) -> None:
    for step in range(1, 20):
        tensors(tmp_path / f"{'long' * 30}/checkpoints/step_{step}.safetensors", 40 - step)
    lines = list(usage_lines(answer(spawner, tmp_path / ("long" * 30), keep=1)))
    tables = [line for line in lines if "/" not in line or line.startswith("…")]
    assert tables
    assert max(map(len, tables)) <= 80
    assert lines[-1] == "Nothing was deleted."
