"""Probes that the agent starts by itself: never beside a job, not before the node was idle long enough, and not more often than wanted."""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.config.schema import Config, ProbesConfig
from mldebug.core.errors import ConfigError, MldebugError
from mldebug.core.yaml_reader import parse
from mldebug_agents.probes.history.scheduled import (
    MEMO,
    WORKER,
    ProbeStarter,
    ScheduledProbes,
    changeable,
    words,
)
from mldebug_agents.system.child.programs import FakeSpawner
from mldebug_agents.system.spawn import Completed
from mldebug_agents.system.workers import Result

WANTED = ProbesConfig(every=3600.0, idle=600.0)


class FakeWorker:
    """Notes what is ordered."""

    def __init__(self) -> None:
        self.busy = False
        self.orders: list[Any] = []

    def order(self, what: Any) -> None:
        self.orders.append(what)


class Memory:
    """A store of small values."""

    def __init__(self, opened: bool = True) -> None:
        self.opened, self.kept = opened, dict[str, bytes]()

    def memo(self, name: str) -> bytes:
        return self.kept.get(name, b"")

    def remember(self, name: str, data: bytes) -> None:
        self.kept[name] = data

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(self.kept)


class Day:
    """A node over time, looked at each 10 s."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.seconds = 0.0
        self.worker: Any = FakeWorker()
        self.memory = memory or Memory()
        self.probes = ScheduledProbes(
            self.worker, self.memory, lambda: 1e9 + self.seconds, lambda: self.seconds
        )

    def go(self, seconds: float, *, is_idle: bool = True, wanted: ProbesConfig = WANTED) -> int:
        """How many probes were started meanwhile."""
        before = len(self.worker.orders)
        until = self.seconds + seconds
        while self.seconds < until:
            self.probes.tick(wanted, is_idle=is_idle)
            self.seconds += 10
        return len(self.worker.orders) - before


def test_none_is_started_unless_it_is_wanted() -> None:
    assert Day().go(86_400, wanted=ProbesConfig()) == 0


def test_none_is_started_beside_a_job_or_soon_after_it() -> None:
    day = Day()
    assert day.go(86_400, is_idle=False) == 0
    assert day.go(590) == 0
    assert day.go(30) == 1


def test_a_job_in_between_begins_the_wait_anew() -> None:
    day = Day()
    assert [day.go(500), day.go(10, is_idle=False), day.go(500), day.go(200)] == [0, 0, 0, 1]


def test_they_come_as_often_as_wanted_also_after_a_restart() -> None:
    day = Day()
    assert day.go(6 * 3600) == 6
    restarted = Day(day.memory)
    restarted.seconds = day.seconds
    assert restarted.go(500) == 0
    assert restarted.go(3600) == 1


def test_a_clock_that_was_set_back_stops_nothing_for_ever() -> None:
    memory = Memory()
    memory.remember(MEMO, msgspec.json.encode(9e9))
    assert Day(memory).go(700) == 1


@pytest.mark.parametrize("memo", [b"x", b"[]", b'"1"'])
def test_a_memo_that_is_none_is_as_none(memo: bytes) -> None:
    memory = Memory()
    memory.remember(MEMO, memo)
    assert Day(memory).go(700) == 1


def test_none_is_started_while_one_runs_or_before_the_store_is_open() -> None:
    day = Day()
    day.worker.busy = True
    assert day.go(7200) == 0
    assert Day(Memory(opened=False)).go(7200) == 0


def test_the_words_are_those_of_a_person_on_an_idle_node() -> None:
    wanted = ProbesConfig(python=Path("/opt/train/bin/python"), device="cuda", sizes=("1GiB",), ops=("all_reduce",))  # fmt: skip
    assert " ".join(words(wanted)) == (
        "probe collectives --if-idle --device cuda --duration 1m --ops all_reduce --sizes 1GiB"
        " --python /opt/train/bin/python"
    )
    assert "--beside-jobs" not in words(WANTED)
    assert "--python" not in words(WANTED)


def run(**more: Any) -> str:
    done = Completed(argv=(), **more)
    return ProbeStarter(FakeSpawner(lambda _: done), Path("/state")).run(WANTED)


def test_how_it_went() -> None:
    busy = b"the training job a runs on this node; no failure, because of --if-idle\n"
    assert run(returncode=0, stdout=b"", stderr=busy).startswith("the training job a runs")
    with pytest.raises(MldebugError, match="a probe needs PyTorch"):
        run(returncode=3, stdout=b"", stderr=b"mldebug: a probe needs PyTorch\n  way out\n")


def test_only_its_own_result_is_taken() -> None:
    probes = Day().probes
    assert probes.on_result(Result(WORKER, None, None, MldebugError("x")))
    assert not probes.on_result(Result("gpus", None, None, None))


def test_the_section_of_the_config() -> None:
    config = parse("probes: {every: 6h, device: cpu, sizes: [1KiB]}", "f", Config)
    assert (config.probes.every, config.probes.sizes) == (6 * 3600.0, ("1KiB",))
    with pytest.raises(ConfigError):
        parse("probes: {every: 10s}", "f", Config)


def test_a_python_that_others_can_change_is_not_started(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("")
    starter = FakeSpawner(lambda argv: Completed(argv=argv, returncode=0))
    python.chmod(0o757)
    with pytest.raises(MldebugError, match=f"everybody can change {python}"):
        ProbeStarter(starter, tmp_path).run(msgspec.structs.replace(WANTED, python=python))
    assert starter.calls == []


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_python_of_this_user_or_root_is_started(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "environment"
    folder.mkdir()
    link = folder / "python"
    link.symlink_to(sys.executable)
    folder.chmod(mode)
    alone = changeable(sys.executable)
    assert changeable(str(link)) == alone  # what stands in the way there is not ours to mend


def test_who_can_put_another_folder_in_its_place_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "python").write_text("")
    folder.chmod(0o777)
    assert str(folder) in changeable(str(folder / "python"))
    folder.chmod(0o755)
    assert changeable(str(folder / "python")) == ""
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        assert changeable(str(folder / "python")) == f"user 65534 can change {folder}"


def environment(folder: Path) -> Path:
    """The Python of a small environment there."""
    packages = folder / "environment" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "environment" / "pyvenv.cfg").touch()
    program = folder / "environment" / "bin" / "python"
    program.parent.mkdir()
    program.touch()
    return program


def test_a_link_on_the_way_to_it_is_found(tmp_path: Path) -> None:
    """Neither where it lies nor where it leads may others write, but where it comes through."""
    program, between = environment(tmp_path), tmp_path / "between"
    between.mkdir()
    (between / "python").symlink_to("../environment/bin/python")
    (tmp_path / "python").symlink_to(between / "python")
    assert changeable(str(tmp_path / "python")) == changeable(str(program)) == ""
    between.chmod(0o777)
    assert changeable(str(tmp_path / "python")) == f"its group or everybody can change {between}"
    assert changeable(str(program)) == ""


@pytest.mark.parametrize("place", ["lib/python3.12/site-packages", "pyvenv.cfg", "lib"])
def test_packages_that_others_can_change_are_found(tmp_path: Path, place: str) -> None:
    program = environment(tmp_path)
    found = program.parent.parent / place
    assert changeable(str(program)) == ""
    found.chmod(0o777)
    assert changeable(str(program)) == f"its group or everybody can change {found}"


def test_a_link_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("python")
    assert "too many levels" in changeable(str(tmp_path / "python"))


def test_a_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "no such file" in changeable(str(tmp_path / "none"))
