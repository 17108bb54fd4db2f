"""Switches without processes: what is a switch, who agrees on what, and what `mldebug switch` does to a folder."""

import faulthandler
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mldebug_training
from mldebug.cli import main as cli
from mldebug.core.errors import AccessError, MldebugError, UsageError
from mldebug.diagnosis.diagnose import diagnose
from mldebug.jobs.switches import parse_announcement, parse_polled, parse_switch, state_lines
from mldebug_agents.jobs.hook import switches as switch_child
from mldebug_agents.jobs.hook.switches import SwitchRequest, ask, carry_out
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.spawn import Spawner
from mldebug_training.helpers.deadline import TimeLimit, seconds, slurm_end
from mldebug_training.helpers.switches import agreement, files, meeting
from mldebug_training.helpers.switches import watch as switchwatch
from mldebug_training.helpers.switches.files import SwitchReading, choose, look, take, write
from mldebug_training.helpers.switches.meeting import LateError
from mldebug_training.helpers.switches.reasons import StopSignal
from mldebug_training.helpers.switches.switches import Switches
from shared.diagnosis.builders import capture, process, rank, still
from shared.system.patience import PATIENCE
from unit.training.test_hook import PYTHONS, interpreters

NOW = 1_800_000_000.0
NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of switches."""
    folder = tmp_path / "switches"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_JOB_ID", files.VARIABLE):
        monkeypatch.delenv(name, raising=False)


# --- the folder ----------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_has_no_switch(tmp_path: Path) -> None:
    reading = look(str(tmp_path / "none"), NOW)
    assert (reading.kill, reading.save, reading.trouble) == (0, 0, "")


def test_a_touched_file_is_a_switch_and_one_setting_is_told_from_the_next(place: Path) -> None:
    (place / "save").touch()
    first = look(str(place), NOW).save
    assert first > 0
    assert look(str(place), NOW).save == first
    os.utime(place / "save", ns=(1, first + 1))
    assert look(str(place), NOW).save != first


@pytest.mark.parametrize("name", ["kill", "save"])
@pytest.mark.parametrize("what", ["fifo", "link", "folder", "dangling"])
def test_what_is_no_regular_file_is_no_switch(place: Path, name: str, what: str) -> None:
    {
        "fifo": lambda: os.mkfifo(place / name),
        "link": lambda: (place / name).symlink_to("/etc/passwd"),
        "folder": lambda: (place / name).mkdir(),
        "dangling": lambda: (place / name).symlink_to("/nowhere"),
    }[what]()
    reading = look(str(place), NOW)
    assert (reading.kill, reading.save) == (0, 0)
    assert f"{name} is no regular file" in reading.trouble
    assert carry_out(SwitchRequest(verb="look", folder=str(place))).found.at(name) is None


def test_a_huge_file_is_a_switch_that_costs_nothing(place: Path) -> None:
    with (place / "kill").open("wb") as file:
        file.truncate(1 << 30)
    began = time.process_time()
    assert look(str(place), NOW).kill > 0
    assert time.process_time() - began < 0.1  # to read it takes several times as long


@pytest.mark.parametrize(
    ("text", "set_"),
    [
        ("", True),
        ('{"until": 1799999999}', False),
        ('{"until": 1800000001}', True),
        ('{"until": "soon"}', True),
        ('{"until": NaN}', True),
        ("[" * 4096, True),
        ("\x00\xff nonsense", True),
    ],
)
def test_a_kill_switch_may_say_until_when_it_holds(place: Path, text: str, set_: bool) -> None:
    (place / "kill").write_text(text)
    assert bool(look(str(place), NOW).kill) is set_


def test_a_folder_that_everybody_may_write_is_not_obeyed(place: Path) -> None:
    (place / "kill").touch()
    place.chmod(0o777)
    reading = look(str(place), NOW)
    assert not reading.kill
    assert "everybody may write it" in reading.trouble


def test_a_switch_that_was_set_again_is_not_taken_away(place: Path) -> None:
    (place / "save").touch()
    token = look(str(place), NOW).save
    os.utime(place / "save", ns=(5, 5))
    assert take(str(place), "save", token) == ""
    assert (place / "save").exists()
    assert take(str(place), "save", 5) == ""
    assert not (place / "save").exists()
    assert take(str(place), "save", 5) == ""  # another rank was faster


def test_the_folder_of_a_job_is_the_same_for_all_its_ranks(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_ID": "9", "TORCHELASTIC_RUN_ID": "x"}
    assert choose(None, array) == (f"{tmp_path}/.mldebug-switch/7", True)
    assert choose(None, {"TORCHELASTIC_RUN_ID": "../up"}) == (
        f"{tmp_path}/.mldebug-switch/___up",
        True,
    )
    generic = {"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}
    assert choose(None, generic) == (
        f"{tmp_path}/.mldebug-switch/{os.uname().nodename}-29500",
        True,
    )
    generic["MASTER_ADDR"] = "node7"
    assert choose(None, generic) == (f"{tmp_path}/.mldebug-switch/node7-29500", True)
    assert choose(None, {files.VARIABLE: "/shared"}) == ("/shared", False)
    assert choose("here", {files.VARIABLE: "/shared"}) == (f"{tmp_path}/here", False)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to somebody else")
def test_the_default_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    assert "belongs to user" in files.make(str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to somebody else")
def test_a_default_folder_in_one_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    """Who has the folder above may put a folder of his own in its place at any time."""
    folder = tmp_path / "switches/job"
    folder.mkdir(parents=True)
    assert files.make(str(folder)) == ""
    os.chown(folder.parent, NOBODY, NOBODY)
    assert "lies in a folder that belongs to user" in files.make(str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to somebody else")
@pytest.mark.parametrize("ours", [True, False], ids=["default", "named"])
def test_a_folder_that_somebody_else_puts_in_its_place_stops_nobody(
    tmp_path: Path, *, ours: bool
) -> None:
    """By a rename, by a link, and back again: the owner is looked at each time, at the folder that is open."""
    folder, his = tmp_path / "switches/job", tmp_path / "his"
    folder.mkdir(parents=True)
    his.mkdir()
    (his / "kill").touch()
    for one in (his, his / "kill"):
        os.chown(one, NOBODY, NOBODY)
    watch = switchwatch.SwitchWatch(str(folder), ours=ours)
    watch._round()
    (folder / "save").touch()
    watch._round()
    assert watch.last_reading is not None
    assert watch.last_reading.save
    folder.rename(folder.with_name("away"))
    for swap in (lambda: folder.symlink_to(his), lambda: his.rename(folder)):
        swap()
        watch._round()
        assert (watch.last_reading.kill, watch.last_reading.save) == (0, 0)
        assert "is not obeyed: it belongs to user" in watch.last_reading.trouble
        folder.unlink(missing_ok=True) if folder.is_symlink() else folder.rename(his)
    folder.with_name("away").rename(folder)
    (folder / "kill").touch()
    watch._round()
    assert watch.last_reading.kill


# --- one rank ------------------------------------------------------------------------------------


class Still:
    """A watch that sees what it is told to see, and takes nothing away unless asked to."""

    folder = "/switches"
    trouble = ""

    def __init__(self) -> None:
        self.last_reading: SwitchReading | None = SwitchReading()
        self.taken: list[int] = []

    def start(self) -> None: ...

    def first_look(self) -> SwitchReading | None:
        return self.last_reading

    def set_status(self, word: dict[str, Any]) -> None: ...

    def on_save_done(self, token: int) -> None:
        self.taken.append(token)


@pytest.fixture
def usr1() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def switches(**options: Any) -> tuple[Switches, Still]:
    one, watch = Switches("/switches", signal=options.pop("signal", None), **options), Still()
    one._watch = watch  # type: ignore[assignment]
    return one, watch


def test_a_save_switch_that_cannot_be_taken_away_saves_once() -> None:
    one, watch = switches(every=1)
    watch.last_reading = SwitchReading(save=5)
    assert [one.poll() for _ in range(4)] == ["save", None, None, None]
    watch.last_reading = SwitchReading(save=6)
    assert [one.poll() for _ in range(4)] == ["save", None, None, None]
    assert watch.taken == [5, 6]
    watch.last_reading = SwitchReading(save=5)  # an old view of it
    assert one.poll() is None


def test_a_kill_goes_before_a_save_and_stays() -> None:
    one, watch = switches()
    watch.last_reading = SwitchReading(kill=1, save=5, by="alice")
    assert [one.poll(), one.poll()] == ["kill", "kill"]
    assert one.reason == "rank 0: the kill switch /switches/kill is set (by alice)"


def test_a_job_that_was_killed_before_it_began_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    one, watch = switches()
    watch.last_reading = SwitchReading(kill=1)
    assert one.at_start() == "kill"
    assert capsys.readouterr().err.count("kill switch") == 1
    other, watch = switches()
    watch.last_reading = SwitchReading(save=1)
    assert other.at_start() is None
    assert other.poll() == "save"
    assert one.at_start() == "kill"


def test_before_the_ranks_can_agree_nobody_acts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    one, watch = switches()
    watch.last_reading = SwitchReading(kill=1)
    assert [one.poll(), one.poll()] == [None, None]
    assert capsys.readouterr().err.count("until torch.distributed is initialised") == 1
    assert one.at_start() is None  # another rank may see it later


@pytest.mark.usefixtures("usr1")
def test_a_signal_asks_to_stop_and_reaches_the_handler_before() -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    one, _ = switches(signal="USR1")
    assert one.poll() is None
    os.kill(os.getpid(), signal.SIGUSR1)
    assert one._reasons.stop_signal.came
    one._pace.due = 0
    assert one.poll() == "kill"
    assert came == [signal.SIGUSR1]
    assert one.reason == "rank 0: SIGUSR1 came"


def test_a_signal_is_no_matter_outside_the_main_thread() -> None:
    made: list[StopSignal] = []
    thread = threading.Thread(target=lambda: made.append(StopSignal("USR1")))
    thread.start()
    thread.join()
    assert "main thread" in made[0].trouble
    with pytest.raises(ValueError, match="no signal"):
        StopSignal("SIGNIFICANT")


@pytest.mark.usefixtures("usr1")
def test_a_handler_that_python_does_not_know_stays() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1)
    try:
        assert "C code handles it" in StopSignal("USR1").trouble
    finally:
        faulthandler.unregister(signal.SIGUSR1)
    assert StopSignal("USR1").trouble == ""


def test_the_watch_is_in_no_list_of_threads(place: Path) -> None:
    watch = switchwatch.SwitchWatch(str(place), ours=False)
    before = threading.enumerate()
    watch.start()
    watch.first_look()
    assert threading.enumerate() == before
    watch.close()


def test_turns_in_which_nobody_asks_count_once() -> None:
    limit = TimeLimit(100, save=0)
    limit.interval(16.0, 16)
    limit.interval(16.0, 16)
    assert limit.grace == 2 * 1.0 + 15.0


def test_the_options_behind_the_command_are_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execvpe", lambda _, words, __: ran.append(words))
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process goes on
    words = ["python", "t.py", "--help", "--print-env"]
    cli.main(["run", *words])
    cli.main(["run", "--", *words])
    assert ran == [words, words]


def test_a_reason_that_fails_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    one, _ = switches(every=1, reason=lambda: str(1 / 0))
    assert [one.poll(), one.poll()] == [None, None]
    assert capsys.readouterr().err.count("division by zero") == 1
    other, _ = switches(reason=lambda: "memory")
    assert other.poll() == "kill"


def test_whatever_breaks_the_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    one, watch = switches()
    watch.start = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    assert [one.poll(), one.poll(), one.at_start()] == [None, None, None]
    assert capsys.readouterr().err.count("the training goes on") == 1


def test_arguments_that_cannot_be_are_told_at_once() -> None:
    for bad in ({"every": 0}, {"signal": "FOO"}):
        with pytest.raises(ValueError):
            Switches("/switches", **bad)  # type: ignore[arg-type]


def test_a_poll_costs_microseconds() -> None:
    one, _ = switches(every=1000)
    one.poll()
    spans = []
    for _ in range(30):
        began = time.perf_counter()
        for _ in range(30):
            one.poll()
        spans.append((time.perf_counter() - began) / 30)
    assert min(spans) < 20e-6


# --- many ranks ----------------------------------------------------------------------------------


class Table:
    """What ranks have put down, round by round."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds: list[dict[int, tuple[int, ...]]] = []
        self.speaks = 0  # the rank whose turn it is


class Seat:
    """An agreement over a table."""

    def __init__(self, table: Table, rank: int) -> None:
        self._table, self._rank, self._round = table, rank, 0
        self.begun = False

    def size(self) -> int:
        return self._table.size

    def give_up(self, numbers: tuple[int, ...], why: str) -> None:
        self.begin(numbers)

    def begin(self, numbers: tuple[int, ...]) -> None:
        rounds = self._table.rounds
        if self._round == len(rounds):
            rounds.append({})
        assert all(0 <= one < 2**63 for one in numbers)
        rounds[self._round][self._rank] = tuple(numbers)
        self.begun = True

    def finish(self, timeout: float | None = None) -> tuple[int, ...]:
        entry = self._table.rounds[self._round]
        assert len(entry) == self._table.size, "it would wait for ever"
        self._round += 1
        self.begun = False
        return tuple(max(column) for column in zip(*entry.values(), strict=True))

    def meet(self, timeout: float) -> None:
        """All ranks of these tests poll equally often."""

    def shortest_timeout(self) -> float:
        return 0.0


class Missing(Seat):
    """The agreement of a rank that waits in vain: another one has missed this very poll."""

    def size(self) -> int:
        return 2

    def meet(self, timeout: float) -> None:
        raise LateError("another rank did not come to this poll in time")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[Table, list[int], list[Switches]]:
    """A table, what each of its two ranks counts, and their switches."""
    table, counts = Table(2), [0, 0]
    monkeypatch.setattr(agreement, "rank", lambda: table.speaks)
    monkeypatch.setattr(agreement, "clock", lambda: counts[table.speaks])
    ranks = [switches(every=1)[0] for _ in range(2)]
    for number, one in enumerate(ranks):
        one._agreement = Seat(table, number)  # type: ignore[assignment]
    return table, counts, ranks


def polled(two: Any, steps: range, ahead: int = 0) -> list[str | None]:
    """What both ranks were answered, where the second one has made so many collectives more."""
    table, counts, ranks = two
    results = []
    for step in steps:
        counts[:] = [step, step + ahead]
        for table.speaks, one in enumerate(ranks):
            results.append(one.poll())
    return results


def test_ranks_whose_counts_part_give_up_together(
    two: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(polled(two, range(1, 9)) + polled(two, range(9, 13), ahead=1)) == {None}
    assert [one._off for one in two[2]] == [True, True]
    assert capsys.readouterr().err.count("are 1 apart") == 2


def test_counts_that_part_for_a_moment_cost_nothing(two: Any) -> None:
    """Where a kill is asked for just then, the ranks that meet decide."""
    polled(two, range(1, 9))
    two[2][0]._watch.last_reading = SwitchReading(save=1)
    assert polled(two, range(9, 11), ahead=1)[2:] == ["save", "save"]
    two[2][0]._watch.last_reading = SwitchReading()
    assert set(polled(two, range(11, 13))) == {None}
    two[2][0]._watch.last_reading = SwitchReading(kill=1)
    polled(two, range(13, 14), ahead=1)
    assert polled(two, range(14, 15), ahead=1) == ["kill", "kill"]


class Interrupted(KeyboardInterrupt):
    """What a handler of the job raises."""


class Broken(Seat):
    """An agreement that a handler of the job interrupts: as the ranks meet, as they have met, as the next exchange begins."""

    def __init__(self, table: Table, rank: int, where: str) -> None:
        super().__init__(table, rank)
        self.where, self.given_up = where, ""

    def break_at(self, where: str) -> None:
        if self.where == where:
            self.where = ""
            raise Interrupted

    def begin(self, numbers: tuple[int, ...]) -> None:
        if self.begun is False and self._round:
            self.break_at("next")
        super().begin(numbers)

    def meet(self, timeout: float) -> None:
        self.break_at("meeting")

    def stay_away(self, why: str) -> None:
        """All have come already."""

    def give_up(self, numbers: tuple[int, ...], why: str) -> None:
        self.given_up = why


@pytest.mark.parametrize(
    ("where", "reading", "result"),
    [
        ("meeting", SwitchReading(kill=1), ["interrupted", "kill", "kill"]),
        ("meeting", SwitchReading(save=5), ["interrupted", "save", None]),
        ("said", SwitchReading(kill=1), ["interrupted", "kill", "kill"]),
        ("said", SwitchReading(save=5), ["interrupted", "save", None]),
        ("next", SwitchReading(save=5), ["interrupted", "save", None]),
    ],
)
def test_what_all_obey_is_not_lost_in_the_rank_that_was_interrupted_then(
    where: str, reading: SwitchReading, result: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, watch = switches(every=1)
    seat = Broken(Table(1), 0, where)
    monkeypatch.setattr(seat, "size", lambda: 2)
    says = lambda text, **_: seat.break_at("said") if "every rank" in text else None
    monkeypatch.setattr(one, "_print_once", says)
    one._agreement = seat  # type: ignore[assignment]
    watch.last_reading = reading
    assert one.poll() is None
    watch.last_reading = SwitchReading()
    answers: list[str | None] = []
    for _ in range(3):
        try:
            answers.append(one.poll())
        except Interrupted:
            answers.append("interrupted")
    assert answers == result
    assert bool(seat.given_up) is (where == "next")


@pytest.mark.parametrize("reading", [SwitchReading(kill=1), SwitchReading(save=5)])
def test_a_poll_missed_where_all_would_obey_turns_the_switches_off(
    capsys: pytest.CaptureFixture[str], reading: SwitchReading
) -> None:
    table = Table(1)
    one, watch = switches(every=1)
    one._agreement = Missing(table, 0)  # type: ignore[assignment]
    watch.last_reading = reading
    assert [one.poll() for _ in range(4)] == [None] * 4
    assert watch.taken == []
    assert "did not come to this poll in time" in capsys.readouterr().err


def test_who_waits_for_all_to_obey_gives_up_before_the_collectives_of_the_job_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, _ = switches()
    for value, waits in ((600.0, 300.0), (20.0, 10.0), (1e6, 600.0), (0.0, 600.0)):
        monkeypatch.setattr(one._agreement, "shortest_timeout", lambda result=value: result)
        assert one._patience() == waits


GROUPS = """
import datetime, sys
import torch, torch.distributed as dist
from mldebug_training.helpers.switches.agreement import RankAgreement

def seconds(count): return {"timeout": datetime.timedelta(seconds=count)}

one, found = RankAgreement(), []
found.append(one.shortest_timeout())
store = dist.TCPStore("127.0.0.1", 0, 1, True)
dist.init_process_group("gloo", store=store, rank=0, world_size=1, **seconds(77))
found.append(one.shortest_timeout())
dist.new_group([0], **seconds(99))
dist.new_group([0], **seconds(12))
found.append(one.shortest_timeout())
given = RankAgreement(dist.new_group([0], **seconds(5)))
found.append(given.shortest_timeout())
print(*found, one._name, given._name, RankAgreement()._name)
"""


def test_of_all_groups_of_the_job_the_shortest_timeout_counts() -> None:
    pytest.importorskip("torch")
    argv = [sys.executable, "-c", GROUPS]
    env = {**os.environ, "PYTHONPATH": str(Path(mldebug_training.__file__).parents[1])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    *seconds, first, given, second = done.stdout.split()
    assert seconds == ["0.0", "77.0", "12.0", "5.0"], done
    assert (first, second) == ("mldebug/switches/all/1", "mldebug/switches/all/2")
    assert given.startswith("mldebug/switches/0-")


IN_A_FILE = """
import sys
import torch.distributed as dist
from mldebug_training.helpers.switches.agreement import RankAgreement
dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
one = RankAgreement()
one.size = lambda: 2
for does in (lambda: one.begin((1,)), lambda: one.give_up((1,), "gave up")):
    try:
        does()
    except RuntimeError as error:
        print(error)
dist.destroy_process_group()
"""


def test_a_store_in_a_file_is_left_alone(tmp_path: Path) -> None:
    """It grows with all that it is told, and it stays, for the next job to read, while anybody keeps it."""
    pytest.importorskip("torch")
    file = tmp_path / "rendezvous"
    argv = [sys.executable, "-c", IN_A_FILE, f"file://{file}"]
    env = {**os.environ, "PYTHONPATH": str(Path(mldebug_training.__file__).parents[1])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    text = "the job's store is a file, which each poll would make longer"
    assert done.stdout.splitlines() == [text] * 2, done
    assert not file.exists()


class Interrupting:
    """A lock: a handler of the job raises as soon as it is taken."""

    def __init__(self, lock: Any) -> None:
        self._lock, self._rings = lock, True
        self.stop_signal = threading.Event()

    def acquire(self, timeout: float) -> bool:
        self.stop_signal.set()
        taken = bool(self._lock.acquire(timeout=timeout))
        if self._rings and taken:
            self._rings = False
            raise Interrupted
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def test_whoever_is_interrupted_as_the_answer_comes_hears_it_again() -> None:
    dist = pytest.importorskip("torch.distributed")

    class Waiting(dist.HashStore):  # type: ignore[misc,name-defined]
        def add(self, key: str, count: int) -> int:
            assert lock.stop_signal.wait(20)
            return int(super().add(key, count))

    store = Waiting()
    one = meeting.Meeting(store, "here", 1, is_host=True)
    lock = one._answered = Interrupting(one._answered)
    with pytest.raises(Interrupted):
        one.come(5.0, 0.01)
    assert len(one.outcome()) == 16
    one.leave()
    assert not store.check(["here/came"])  # a later launch finds nothing


def test_a_store_that_answers_late_makes_nobody_obey_who_has_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(meeting, "ANSWERING", 0.2)
    monkeypatch.setattr(meeting, "LOOK", 0.05)
    monkeypatch.setattr(meeting, "_silent", [])
    goes_on = threading.Event()

    class Stopped(dist.HashStore):  # type: ignore[misc,name-defined]
        def add(self, key: str, count: int) -> int:
            assert goes_on.wait(20)
            return int(super().add(key, count))

    store = Stopped()
    one = meeting.Meeting(store, "here", 1)
    with pytest.raises(LateError, match="does not answer"):
        one.come(5.0, 0.01)
    one.stay_away("rank 0 gave up")
    goes_on.set()
    one.wait(20)
    assert store.get("here/answer") == b"rank 0 gave up"
    with pytest.raises(LateError):  # it is asked no more
        meeting.Meeting(store, "there", 1).come(5.0, 0.01)


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 40),  # poll
        st.integers(0, 3),  # rank
        st.sampled_from(["save 1", "save 2", "gone", "kill", "signal", "reason", "slow"]),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, every=st.sampled_from([None, 1, 3]))
def test_all_ranks_do_the_same_at_the_same_step(events: list[Any], every: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        table = Table(4)
        patch.setattr(agreement, "rank", lambda: table.speaks)
        words: list[str | None] = [None] * 4
        ranks = [switches(every=every, reason=lambda n=rank: words[n]) for rank in range(4)]
        for rank, (one, _) in enumerate(ranks):
            one._agreement = Seat(table, rank)  # type: ignore[assignment]
        saves: list[int] = []
        for step in range(60):
            for _, rank, what in (one for one in events if one[0] == step):
                _happen(what, ranks[rank], words, rank)
            answers = []
            for table.speaks, (one, _) in enumerate(ranks):
                answers.append(one.poll())
            assert len(set(answers)) == 1, (step, answers)
            saves += [step] if answers[0] == "save" else []
        assert len(saves) <= len({what for _, _, what in events if what.startswith("save")})
        stops = {"kill", "signal", "reason"} & {what for _, _, what in events}
        assert (answers[0] == "kill") is bool(stops) or _undone(events)


def _happen(what: str, rank: tuple[Switches, Still], words: list[str | None], number: int) -> None:
    one, watch = rank
    if what.startswith("save"):
        watch.last_reading = SwitchReading(save=int(what[-1]))
    elif what == "gone":
        watch.last_reading = SwitchReading()
    elif what == "kill":
        watch.last_reading = SwitchReading(kill=9)
    elif what == "signal":
        one._reasons.stop_signal.came = True
    elif what == "reason":
        words[number] = "memory"
    elif one._pace._begun:  # its steps take long: it proposes another pace
        one._pace._begun = one._pace._begun[0], one._pace._begun[1] - 100.0


def _undone(events: list[Any]) -> bool:
    """A kill switch that went before anybody looked stops nobody."""
    return {what for _, _, what in events} & {"signal", "reason"} == set()


# --- time ----------------------------------------------------------------------------------------


def test_it_stops_when_twice_a_step_and_a_save_no_longer_fit() -> None:
    clock = [1000.0]
    limit = TimeLimit(
        "slurm", save=30, clock=lambda: clock[0], environ={"SLURM_JOB_END_TIME": "2000000000"}
    )
    assert limit.end == 2e9
    limit.interval(500.0)  # the first one compiles
    limit.interval(5.0)
    limit.interval(10.0)
    limit.interval(4.0)
    assert limit.grace == 2 * (10 + 30)
    limit.saved(20.0)
    assert limit.grace == 2 * (10 + 20)  # what was measured goes before what was assumed
    limit.saved(50.0)
    limit.saved(20.0)
    assert limit.grace == 2 * (10 + 50)
    clock[0] = 2e9 - 121
    assert limit.reason() is None
    clock[0] = 2e9 - 119
    assert limit.reason() == "119 s of its time are left, a step and a save may take 60 s"


def test_a_slow_turn_is_forgotten_in_the_end() -> None:
    limit = TimeLimit(100, save=0)
    for length in (1.0, 50.0, *([1.0] * 3000)):
        limit.interval(length)
    assert limit.grace == 2.0


@pytest.mark.parametrize(
    ("number", "meant"),
    [(90, 90), ("90s", 90), ("1d12h", 129600), ("99h 50m", 359400), ("1.5h", 5400)],
)
def test_durations(number: float | str, meant: float) -> None:
    assert seconds(number) == meant


@pytest.mark.parametrize(
    "number", ["", "5", "5x", "1h5", "h", "-5s", -1, float("nan"), float("inf")]
)
def test_what_is_no_duration_is_refused(number: float | str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        TimeLimit(number)


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "99", "4294967295", "1" * 30, "٣" * 10])
def test_an_end_that_cannot_be_is_none(text: str) -> None:
    assert slurm_end({"SLURM_JOB_END_TIME": text}) is None
    limit = TimeLimit("slurm", environ={"SLURM_JOB_END_TIME": text})
    assert limit.reason() is None
    assert "no time limit" in limit.trouble


def test_a_duration_counts_from_the_start_of_the_process() -> None:
    limit = TimeLimit(3600)
    started = psutil.Process().create_time()
    assert limit.end == pytest.approx(started + 3600, abs=5.0)


# --- the thread ----------------------------------------------------------------------------------


def wait_for(condition: Any, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout * PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_watch_leaves_word_and_takes_it_back(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(switchwatch.shared_files, "FOLDER", str(tmp_path))
    folder = tmp_path / "a" / "b"
    watch = switchwatch.SwitchWatch(str(folder), ours=True, interval=0.01)
    watch.start()
    assert watch.first_look().trouble == ""
    watch.set_status({"at": 5.0, "rank": 0, "world_size": 3, "node": "n1", "pid": 7, "polls": 2})
    wait_for((folder / "polled").exists)
    polled = parse_polled((folder / "polled").read_bytes())
    assert polled is not None
    assert (polled.at, polled.world_size, polled.node) == (5.0, 3, "n1")
    (announced,) = tmp_path.glob("mldebug-*.switch")
    assert parse_announcement(announced.read_bytes()) == str(folder)
    assert stat.S_IMODE(announced.stat().st_mode) == 0o600
    (folder / "save").touch()
    wait_for(lambda: watch.last_reading.save)
    watch.on_save_done(watch.last_reading.save)
    wait_for(lambda: not (folder / "save").exists())
    watch.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_job_has_left_goes_with_the_next(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(switchwatch.shared_files, "FOLDER", str(tmp_path))
    left = tmp_path / "mldebug-1-1.switch"
    left.write_text('{"folder": "/x"}')
    watch = switchwatch.SwitchWatch(str(tmp_path / "none"), ours=False, interval=0.01)
    watch.start()
    watch.first_look()
    assert [path.name for path in tmp_path.iterdir()] != [left.name]
    assert not left.exists()
    watch.close()


def test_a_read_only_folder_is_told_and_counts_once(place: Path, monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    (place / "save").touch()
    monkeypatch.setattr(files.os, "unlink", refuse)
    watch = switchwatch.SwitchWatch(str(place), ours=False, interval=0.01)
    watch.start()
    watch.on_save_done(watch.first_look().save)
    wait_for(lambda: watch.trouble)
    assert watch.trouble.endswith("cannot be taken away: Read-only file system; it counts once")
    watch.close()


def test_a_folder_that_hangs_holds_nobody_up(monkeypatch: Any) -> None:
    released = threading.Event()
    monkeypatch.setattr(switchwatch, "look", lambda *_: released.wait(60) and SwitchReading())
    monkeypatch.setattr(switchwatch, "GOODBYE", 0.1)
    watch = switchwatch.SwitchWatch("/hung", ours=False)
    watch.start()
    began = time.monotonic()
    assert "hangs" in watch.first_look(timeout=0.1).trouble
    watch.close()
    assert time.monotonic() - began < 10 * PATIENCE
    released.set()
    assert watch._gone.wait(20)


SCRIPT = """
import mldebug_training
stop = mldebug_training.Switches({folder!r}, limit=mldebug_training.TimeLimit("1h"))
print(stop.at_start())
open({folder!r} + "/save", "w").close()
import time
until = time.monotonic() + 60
while not stop.poll() and time.monotonic() < until:
    time.sleep(0.01)
print(stop.reason)
with stop.saving():
    pass
with mldebug_training.main_process_first() as first:
    print(first)
"""


@pytest.mark.parametrize("version", PYTHONS)
def test_it_runs_in_every_python_without_torch(place: Path, version: str) -> None:
    if version not in interpreters():
        pytest.skip(f"there is no Python {version} here")
    home = Path(mldebug_training.__file__).parents[1]
    done = subprocess.run(
        [interpreters()[version], "-W", "error", "-c", textwrap.dedent(SCRIPT.format(folder=str(place)))],
        env={"PYTHONPATH": str(home), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == f"None\nrank 0: the save switch {place}/save is set\nTrue\n", done
    assert done.stderr.startswith("mldebug: rank 0: the save switch")
    assert sorted(path.name for path in place.iterdir()) in ([], ["polled"])


# --- the agent's side ----------------------------------------------------------------------------


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner({switch_child.NAME: switch_child.serve}) as one:
        yield one


def test_both_sides_read_what_the_other_writes(place: Path, spawner: Spawner) -> None:
    request = SwitchRequest(verb="set", folder=str(place), name="kill", until=NOW + 5, by="alice")
    assert ask(spawner, request).kill.until == NOW + 5
    reading = look(str(place), NOW)
    assert reading.kill
    assert reading.by == "alice"
    assert not look(str(place), NOW + 6).kill
    write(str(place), "polled", {"at": NOW, "rank": 0, "world_size": 4, "node": "n", "pid": 3})
    found = ask(spawner, SwitchRequest(verb="clear", folder=str(place), name="kill"))
    assert found.kill is None
    assert found.polled.world_size == 4
    assert [path.name for path in place.iterdir()] == ["polled"]


def test_a_switch_takes_the_place_of_whatever_was_there(place: Path, spawner: Spawner) -> None:
    victim = place.parent / "victim"
    victim.write_text("precious")
    (place / "kill").symlink_to(victim)
    os.mkfifo(place / "save")
    for name in ("kill", "save"):
        assert (
            ask(spawner, SwitchRequest(verb="set", folder=str(place), name=name)).at(name)
            is not None
        )
        assert stat.S_ISREG((place / name).lstat().st_mode)
    assert victim.read_text() == "precious"


def test_what_cannot_be_set_is_said_in_words(place: Path, spawner: Spawner) -> None:
    (place / "kill").mkdir()
    (place / "kill" / "x").touch()
    with pytest.raises(UsageError, match="directory"):
        ask(spawner, SwitchRequest(verb="set", folder=str(place), name="kill"))
    assert [path.name for path in place.iterdir()] == ["kill"]
    with pytest.raises(UsageError, match="no such file"):
        ask(spawner, SwitchRequest(verb="set", folder=f"{place}/none", name="kill"))
    place.chmod(0o777)
    with pytest.raises(AccessError, match="no job obeys it"):
        ask(spawner, SwitchRequest(verb="set", folder=str(place), name="save"))
    assert (
        "everybody may write" in ask(spawner, SwitchRequest(verb="look", folder=str(place))).trouble
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="acts for another user")
def test_root_acts_with_the_rights_of_the_jobs_user(tmp_path: Path, spawner: Spawner) -> None:
    folder, closed = tmp_path / "his", tmp_path / "closed"
    for path in (folder, closed):
        path.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    for path in (tmp_path, *tmp_path.parents[:-1]):
        if path.stat().st_uid == os.geteuid() and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    owner = Rights(NOBODY, NOBODY)
    ask(spawner, SwitchRequest(verb="set", folder=str(folder), name="kill", owner=owner))
    ask(spawner, SwitchRequest(verb="set", folder=str(folder), name="save"))
    assert {(folder / name).stat().st_uid for name in ("kill", "save")} == {NOBODY}
    closed.chmod(0o755)
    with pytest.raises(AccessError, match="permission denied"):
        ask(spawner, SwitchRequest(verb="set", folder=str(closed), name="kill", owner=owner))
    (tmp_path / "trap").symlink_to("/etc")
    with pytest.raises(MldebugError):
        ask(
            spawner,
            SwitchRequest(verb="set", folder=str(tmp_path / "trap"), name="kill", owner=owner),
        )
    assert not Path("/etc/kill").exists()


@pytest.mark.parametrize(
    "waits",
    [
        (
            "finish (mldebug_training/helpers/switches/agreement.py:60)",
            "poll (mldebug_training/helpers/switches/switches.py:99)",
        ),
        (
            "hear (mldebug_training/helpers/switches/meeting.py:70)",
            "_meet (mldebug_training/helpers/switches/agreement.py:130)",
        ),
        (
            "wait (mldebug_training/common/calls.py:50)",
            "finish (mldebug_training/helpers/switches/agreement.py:140)",
        ),
        (
            "_wait (mldebug_training/helpers/first.py:99)",
            "__enter__ (mldebug_training/helpers/first.py:60)",
        ),
    ],
)
@pytest.mark.parametrize("wchan", ["hrtimer_nanosleep", "futex_do_wait"])
def test_whoever_waits_in_a_helper_is_not_to_blame(waits: tuple[str, ...], wchan: str) -> None:
    waiting = process(*waits, "train (train.py:30)", wchan=wchan, move=still())
    blocked = process("load (train.py:7)", wchan="pipe_read", move=still())
    ranks = [rank(n, blocked if n == 0 else waiting) for n in range(4)]
    found = diagnose([capture(*ranks)]).diagnosis
    assert [one.rank for one in found.culprits] == [0]
    assert "train.py:30" in " ".join([found.summary, *found.evidence])


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"at": "x"}', b'{"at": 1e999}', b"[" * 5000, b"\xff\x00"]
)
def test_words_that_a_job_made_up_are_none(data: bytes) -> None:
    assert parse_polled(data) is None
    assert parse_announcement(data) == ""
    assert parse_switch(data, NOW).until is None


def test_hostile_words_do_not_reach_the_terminal() -> None:
    polled = parse_polled(
        json.dumps({"at": NOW, "node": "\x1b[31mx\n", "pid": -5, "rank": 1e300}).encode()
    )
    assert polled is not None
    assert (polled.node, polled.pid) == ("x", 0)
    assert parse_announcement(b'{"folder": "relative"}') == ""
    assert parse_announcement(b'{"folder": "/a\\u0000b"}') == ""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["switch", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command_line(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv(files.VARIABLE, str(place))
    code, out, _ = run(capsys, "status")
    assert (code, "kill    not set" in out, "by nobody" in out) == (0, True, True)
    code, out, _ = run(capsys, "kill")
    assert (code, "It holds for 1 d" in out, "Nobody asks" in out) == (0, True, True)
    code, out, _ = run(capsys, "status")
    assert (code, "for another " in out) == (1, True)
    assert max(map(len, out.replace(str(place), "").splitlines())) <= 80  # but for a long path
    code, out, _ = run(capsys, "status", "--json")
    found = json.loads(out)["switches"][0]["found"]
    assert (code, found["kill"]["by"] != "", found["save"]) == (1, True, None)
    assert run(capsys, "kill", "--clear")[0] == 0
    assert run(capsys, "status")[0] == 0
    assert run(capsys, "save", "--json")[0] == 0
    assert (place / "save").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("kill", "--folder", "/nowhere/at/all"), "no such file"),
        (("kill", "--for", "soon"), "--for"),
        (("kill", "--for", "0s"), "longer than 0 s"),
        (("kill", "--run", "a", "--folder", "/b"), "not both"),
    ],
)
def test_wrong_words_are_one_sentence(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert why in err
    assert len(err.splitlines()) == 2


def test_a_late_word_says_that_a_hung_rank_never_asks_again(place: Path) -> None:
    write(
        str(place), "polled", {"at": NOW - 600, "rank": 0, "world_size": 8, "node": "n1", "pid": 7}
    )
    found = carry_out(SwitchRequest(verb="look", folder=str(place))).found
    assert found is not None
    lines = list(state_lines(found, NOW))
    assert lines[3].startswith("asked   10 min ago by rank 0 of 8 (pid 7 on n1)")
    assert "mldebug dump" in lines[3]
