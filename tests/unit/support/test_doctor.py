"""Doctor tells the truth about this node, and knows every other node's troubles from texts."""

import ctypes
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from mldebug import __version__
from mldebug_agents.capture.stacks.pyspy import find_binary
from mldebug_agents.cli.commands.support.doctor import FOR_MORE, Examination, show, sum_up
from mldebug_agents.support.doctor import checks, rights, rows, trials
from mldebug_agents.support.doctor.clock import STA_UNSYNC, TIME_ERROR, ClockState, clock_state
from mldebug_agents.support.doctor.rows import DoctorCheck
from mldebug_agents.system.child.programs import Completed, FakeSpawner
from mldebug_agents.system.fake_reader import FakeReader
from mldebug_agents.system.reader import Unreadable
from mldebug_agents.system.spawn import Spawner

DENIED = Unreadable("permission denied")
STATUS = "Name:\tpython3\nUid:\t1000\t{uid}\t1000\t1000\nCapEff:\t{caps}\nSeccomp:\t0\n"
MOUNTINFO = "22 1 0:20 / /sys rw - sysfs sysfs rw\n23 1 0:21 / /proc rw,nosuid shared:5 - proc proc {options}\n"
DUMPED = json.dumps(
    [{"pid": 1, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 1, "active": False, "owns_gil": False,
      "frames": [{"name": name, "filename": "x", "module": None, "short_filename": "x", "line": line, "locals": None,
                  "is_entry": True, "is_shim_entry": False} for name, line in (("wait4", 0), ("mldebug_trial", 7))]}]
).encode()  # fmt: skip


# --- readings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "held"),
    [
        ("0000000000000000", set()),
        ("0000000000080004", {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}),
        ("0000000400000020", {"CAP_SYSLOG", "CAP_KILL"}),
        ("0000000000200002", {"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"}),
        ("000001ffffffffff", set(rights.CAPABILITIES)),
        ("junk", set()),
    ],
)
def test_capabilities_have_names(mask: str, held: set[str]) -> None:
    assert rights.held_capabilities(STATUS.format(uid=0, caps=mask)) == held


def test_capabilities_agree_with_the_kernel_s_own_number() -> None:
    last = Path("/proc/sys/kernel/cap_last_cap")
    if not last.exists():
        pytest.skip("this kernel does not tell its last capability")
    assert len(rights.CAPABILITIES) >= int(last.read_text()) + 1


@pytest.mark.parametrize(
    ("text", "scope"), [(None, 0), ("0\n", 0), ("1\n", 1), ("2", 2), ("3", 3), ("x", 0)]
)
def test_ptrace_scope_absent_is_zero(text: str | None, scope: int) -> None:
    assert rights.ptrace_scope(text) == scope


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ("rw", ""),
        ("rw,hidepid=0", ""),
        ("rw,gid=4,hidepid=2", "2"),
        ("rw,hidepid=invisible", "invisible"),
        ("rw,hidepid=off", ""),
    ],
)
def test_hidepid_is_read_from_the_mount(options: str, mode: str) -> None:
    assert rights.hidepid(MOUNTINFO.format(options=options)) == mode


def test_the_owner_is_the_effective_uid() -> None:
    assert rights.owner(STATUS.format(uid=7, caps="0")) == 7
    assert rights.owner("") is None


OURS, OTHER = "mldebug = mldebug.cli.main:main", "mldebug = mldebug.__main__:main"


def installation(folder: Path, name: str, version: str, command: str) -> None:
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (place / "entry_points.txt").write_text(f"[console_scripts]\n{command}\n")


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ((), ""),
        ((("mldebug-agent", __version__, OURS),), ""),
        ((("mldebug", "0.0.9", OURS),), ""),
        ((("mldebug", "0.0.9", OURS), ("mldebug-agent", __version__, OURS)), "installed twice"),
        ((("mldebug", __version__, OURS), ("mldebug-agent", __version__, OURS)), "installed twice"),
        ((("mldebug", "0.0.9", OTHER),), "another program called mldebug (0.0.9)"),
        ((("mldebug", __version__, OTHER), ("mldebug-agent", __version__, OURS)), "another program"),
    ],
)  # fmt: skip
def test_another_program_of_the_same_name_is_seen(
    tmp_path: Path, installed: tuple[tuple[str, str, str], ...], words: str
) -> None:
    """It is told from this program under its earlier name by its command, and not by its version."""
    for one in installed:
        installation(tmp_path, *one)

    def find(name: str) -> Distribution:
        for one in distributions(path=[str(tmp_path)]):
            if one.name == name:
                return one
        raise PackageNotFoundError(name)

    found = checks.namesake(find)
    assert (found is None) == (not words)
    assert found is None or words in found.meaning


# --- rows ----------------------------------------------------------------------------------------

PTRACE = frozenset({"CAP_SYS_PTRACE"})
NOTHING: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("check", "state", "text"),
    [
        (rows.namesake("0.9.0"), "limited", "pip uninstall mldebug mldebug-agent"),
        (rows.yama(0, NOTHING), "ok", "same user"),
        (rows.yama(1, NOTHING), "missing", "sysctl kernel.yama.ptrace_scope=0"),
        (rows.yama(1, PTRACE), "ok", "CAP_SYS_PTRACE is held"),
        (rows.yama(3, PTRACE), "missing", "reboot"),
        (rows.capabilities(frozenset(rights.USES)), "ok", "all"),
        (rows.capabilities(PTRACE), "limited", "CAP_SYSLOG: the kernel log"),
        (rows.capabilities(NOTHING), "limited", "held: none"),
        (rows.hidden_processes("", NOTHING), "ok", "listed"),
        (rows.hidden_processes("2", NOTHING), "limited", "remount"),
        (rows.hidden_processes("2", PTRACE), "ok", "lifted"),
        (rows.hidden_processes("invisible", NOTHING), "limited", "hidden"),
        (rows.container("pid:[4026531836]"), "ok", "every process"),
        (rows.container("pid:[4026532000]"), "limited", "--pid=host"),
        (rows.container(""), "limited", "--pid=host"),
        (rows.clock(0.0, ClockState(known=True, synchronised=True)), "missing", "never set"),
        (rows.clock(2e9, ClockState(known=False)), "limited", "does not say"),
        (rows.clock(2e9, ClockState(known=True)), "limited", "chrony"),
        (rows.clock(2e9, ClockState(known=True, synchronised=True, error_seconds=0.02)), "ok", "0.02 s"),
    ],
)  # fmt: skip
def test_a_row_says_what_it_means_and_how_to_get_more(
    check: DoctorCheck, state: str, text: str
) -> None:
    assert check.state == state
    assert text in f"{check.meaning} {check.way_out}"
    assert state == "ok" or check.way_out or "does not say" in check.meaning


@pytest.mark.parametrize(
    ("returned", "status", "expected"),
    [
        (0, 0, ClockState(known=True, synchronised=True, error_seconds=1.5)),
        (0, STA_UNSYNC, ClockState(known=True, synchronised=False, error_seconds=1.5)),
        (TIME_ERROR, 0, ClockState(known=True, synchronised=False, error_seconds=1.5)),
        (-1, 0, ClockState(known=False)),
    ],
)
def test_the_kernel_clock_is_read_by_its_layout(
    returned: int, status: int, expected: ClockState
) -> None:
    word = ctypes.sizeof(ctypes.c_long)

    def adjtimex(buffer: "ctypes.Array[ctypes.c_char]") -> int:
        assert buffer.raw == bytes(len(buffer)), "modes must be 0: nothing may be set"
        buffer[3 * word : 4 * word] = (1_500_000).to_bytes(word, sys.byteorder)
        buffer[5 * word : 5 * word + 4] = status.to_bytes(4, sys.byteorder)
        return returned

    assert clock_state(adjtimex) == expected


def test_the_real_kernel_clock_answers() -> None:
    assert clock_state().known


# --- the checks over a world of our making -------------------------------------------------------

Answer = Callable[[tuple[str, ...]], Completed]


def answering(dump: Completed, version: Completed | None = None, place: bytes = b"") -> Answer:
    def answer(argv: tuple[str, ...]) -> Completed:
        if "dump" in argv:
            return dump
        if "--version" in argv:
            return version or Completed(returncode=0, stdout=b"py-spy 0.4.3\n")
        return Completed(returncode=0, stdout=place)

    return answer


def world(
    files: dict[str, bytes | Unreadable] | None = None, answer: Answer | None = None
) -> checks.CheckEnvironment:
    return checks.CheckEnvironment(
        reader=FakeReader(files or {}),
        starter=FakeSpawner(answer or answering(Completed(returncode=0, stdout=DUMPED))),
        py_spy="/opt/py-spy",
        state_dir=Path("/state"),
        asleep=7,
        uid=1000,
    )


def failing(stderr: str) -> Completed:
    return Completed(returncode=1, stderr=stderr.encode())


def test_own_dump_works_when_the_right_stack_comes_back() -> None:
    assert checks.own_dump(world()).state == "ok"
    assert checks.native_stacks(world()).state == "ok"


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (failing("Error: Permission Denied: Try running again"), "no permission"),
        (failing("Error: Operation not permitted (os error 1)"), "no permission"),
        (
            Completed(returncode=127, stderr=b"Permission denied"),
            "/opt/py-spy does not start: Permission denied",
        ),
        (Completed(error="Permission denied"), "does not start: Permission denied"),
        (Completed(timed_out=True), "no answer in 5 s"),
        (Completed(returncode=0, stdout=b"hello"), "something else"),
        (
            Completed(returncode=0, stdout=DUMPED.replace(b"mldebug_trial", b"other")),
            "not the right one",
        ),
        (Completed(returncode=0, stdout=b"[]"), "saw no Python thread"),
    ],
)
def test_own_dump_says_why_it_does_not_work(done: Completed, text: str) -> None:
    check = checks.own_dump(world(answer=answering(done)))
    assert check.state == "missing"
    assert text in check.meaning
    assert check.way_out
    assert checks.native_stacks(world(answer=answering(done))).state == "limited"


def test_a_missing_py_spy_says_how_to_get_it() -> None:
    absent = answering(failing(""), version=Completed(error="No such file or directory"))
    check = checks.py_spy(world(answer=absent))
    assert (check.state, "pip install py-spy" in check.way_out) == ("missing", True)
    assert "No such file" in check.meaning


@pytest.mark.parametrize(
    ("environ", "held", "state"),
    [
        (b"RANK=0\0", NOTHING, "ok"),
        (DENIED, NOTHING, "limited"),
        (DENIED, frozenset({"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}), "limited"),
    ],
)
def test_other_users_jobs_are_tried_on_a_real_stranger(
    environ: bytes | Unreadable, held: frozenset[str], state: str, tmp_path: Path
) -> None:
    (tmp_path / "41").mkdir()
    files: dict[str, bytes | Unreadable] = {
        f"{tmp_path}/41/status": STATUS.format(uid=7, caps="0").encode(),
        f"{tmp_path}/41/cmdline": b"train.py\0",
        f"{tmp_path}/41/environ": environ,
    }
    look = msgspec.structs.replace(world(files), proc=str(tmp_path))
    assert checks.other_users(look, held).state == state


def test_own_processes_and_kernel_threads_are_no_strangers(tmp_path: Path) -> None:
    files: dict[str, bytes | Unreadable] = {}
    for pid, uid, command in (("41", 1000, b"x\0"), ("42", 0, b"")):
        (tmp_path / pid).mkdir()
        files[f"{tmp_path}/{pid}/status"] = STATUS.format(uid=uid, caps="0").encode()
        files |= {f"{tmp_path}/{pid}/cmdline": command, f"{tmp_path}/{pid}/environ": DENIED}
    look = msgspec.structs.replace(world(files), proc=str(tmp_path))
    both = frozenset({"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"})
    assert checks.other_users(look, both).state == "ok"
    assert checks.other_users(look, NOTHING).state == "limited"


@pytest.mark.parametrize(
    ("files", "stack", "wchan"),
    [
        ({"/proc/self/stack": b"[<0>] do_sys_poll\n", "/proc/7/wchan": b"do_poll"}, "ok", "ok"),
        ({"/proc/self/stack": DENIED, "/proc/7/wchan": b"0"}, "limited", "limited"),
        ({"/proc/7/wchan": b""}, "limited", "limited"),
    ],
)
def test_what_the_kernel_tells_of_a_sleeper(
    files: dict[str, bytes | Unreadable], stack: str, wchan: str
) -> None:
    assert checks.kernel_stacks(world(files)).state == stack
    assert checks.waiting_channel(world(files)).state == wchan


@pytest.mark.parametrize(
    ("found", "state", "text"),
    [
        (b'{"place": "/state", "writable": true, "free": 21474836480}', "ok", "20 GiB free"),
        (b'{"place": "/", "writable": true, "free": 21474836480}', "ok", "made when needed"),
        (b'{"place": "/", "writable": false, "free": 21474836480}', "missing", "not writable"),
        (b'{"place": "/state", "writable": true, "free": 1048576}', "limited", "only 1MiB free"),
        (b"", "missing", "gives no answer"),
    ],
)
def test_the_state_directory(found: bytes, state: str, text: str) -> None:
    check = checks.state_dir(world(answer=answering(Completed(), place=found)))
    assert check.state == state
    assert text in check.meaning


def test_the_kernel_log_may_be_closed_or_absent(tmp_path: Path) -> None:
    assert checks.kernel_log(str(tmp_path / "none")).state == "limited"
    (tmp_path / "kmsg").write_text("6,1,1,-;hello\n")
    assert checks.kernel_log(str(tmp_path / "kmsg")).state == "ok"


# --- real programs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    with Spawner() as made:
        yield made


@pytest.mark.parametrize("mode", ["--nonblocking", "--native"])
def test_the_trial_reads_a_real_process(spawner: Spawner, mode: str) -> None:
    dump = trials.try_dump(spawner, find_binary(), mode)
    assert dump.failure == ""
    assert any(frame.native for stack in dump.stacks for frame in stack.frames) == (
        mode == "--native"
    )


def test_a_py_spy_that_hangs_is_an_answer(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "TRIAL_SECONDS", 0.3)
    sleeper = tmp_path / "py-spy"
    sleeper.write_text("#!/bin/sh\nsleep 60\n")
    sleeper.chmod(0o755)
    assert "no answer" in trials.try_dump(spawner, str(sleeper), "--nonblocking").failure


@pytest.mark.parametrize("mode", [0o644, None])
def test_a_py_spy_that_does_not_start_is_not_taken_for_missing_rights(
    spawner: Spawner, tmp_path: Path, mode: int | None
) -> None:
    binary = tmp_path / "py-spy"
    if mode is not None:
        binary.write_text("x")
        binary.chmod(mode)
    failure = trials.try_dump(spawner, str(binary), "--nonblocking").failure
    assert failure.startswith(f"{binary} does not start: ")


def test_the_state_directory_is_looked_at_for_real(spawner: Spawner, tmp_path: Path) -> None:
    found = trials.try_state_dir(spawner, tmp_path / "a" / "b")
    assert (found.place, found.writable, found.free > 0) == (str(tmp_path), True, True)
    assert trials.try_state_dir(spawner, tmp_path).writable
    assert not list(tmp_path.iterdir())


def doctor(tmp_path: Path, config: str = "") -> subprocess.CompletedProcess[str]:
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}/state}}\n{config}")
    argv = [sys.executable, "-m", "mldebug", "doctor", "--json", "--config", str(file)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("below", ["", "/deeper/state"])
def test_a_state_directory_that_is_a_file_is_named(
    spawner: Spawner, tmp_path: Path, below: str
) -> None:
    (tmp_path / "state").write_text("")
    world = checks.CheckEnvironment(
        reader=FakeReader({}), starter=spawner, py_spy="", state_dir=Path(f"{tmp_path}/state{below}"), asleep=1
    )  # fmt: skip
    row = checks.state_dir(world)
    assert row.state == "missing"
    assert f"{tmp_path}/state is not a folder" in row.meaning


def test_doctor_works_here(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    found = msgspec.json.decode(done.stdout, type=Examination)
    states = {check.name: check.state for check in found.checks}
    assert done.stderr == ""
    assert (done.returncode, found.works, found.uid) == (0, True, os.geteuid())
    assert (
        states["py-spy"]
        == states[checks.OWN_DUMP]
        == states["native stacks"]
        == states["wchan"]
        == "ok"
    )
    assert states["state directory"] == "ok"


def test_doctor_tells_a_script_when_dump_cannot_work(tmp_path: Path) -> None:
    done = doctor(tmp_path, "capture: {py_spy: /nowhere/py-spy}")
    found = msgspec.json.decode(done.stdout, type=Examination)
    assert (done.returncode, found.works) == (3, False)
    assert "/nowhere/py-spy" in found.checks[0].meaning


def test_the_table_fits_a_narrow_terminal_and_begins_with_the_verdict() -> None:
    hostile = DoctorCheck(
        name=checks.OWN_DUMP,
        state="missing",
        meaning="[red]x\x1b[2J" + "long " * 40,
        way_out="do this",
    )
    buffer = io.StringIO()
    show(sum_up((hostile,)), Console(file=buffer, width=80))
    printed = buffer.getvalue()
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed
    assert "[red]x" in printed
    assert "→ do this" in printed
    assert printed.startswith(
        "✘ `mldebug dump` does not work for your jobs: see the lines marked missing.\n"
    )


def test_an_ordinary_user_reads_first_that_his_jobs_can_be_dumped() -> None:
    own, log = (
        DoctorCheck(name=checks.OWN_DUMP, state="ok", meaning="read"),
        DoctorCheck(name="kernel log", state="limited", meaning="closed", way_out="CAP_SYSLOG"),
    )
    buffer = io.StringIO()
    show(sum_up((log, own)), Console(file=buffer, width=80))
    lines = buffer.getvalue().splitlines()
    assert lines[0] == "✔ `mldebug dump` works for your jobs."
    titles = [line for line in lines if line.startswith("For ")]
    assert titles == ["For your own jobs", "For other users' jobs, and for more evidence"]
    assert lines.index(titles[0]) < buffer.getvalue().count("\n")
    assert buffer.getvalue().index(checks.OWN_DUMP) < buffer.getvalue().index("kernel log")


def test_every_check_that_only_admins_need_exists() -> None:
    """A check that was renamed would silently move up to those of an ordinary user."""
    source = "".join(Path(one.__file__).read_text() for one in (checks, rows))
    assert [name for name in FOR_MORE if f'"{name}"' not in source] == []
