"""The tracer inside real Pythons, by either writer: what stands in the ring, and that the program is what it was without."""

import ast
import itertools
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mldebug_agents.jobs.job_start import hook_folder
from mldebug_training.tracing import ring
from mldebug_training.tracing.ring_file import KEEP_RINGS, sweep
from shared.capture.natives import native_folder
from shared.capture.ringwords import Words
from unit.training.test_hook import interpreters


def modern(version: str) -> bool:
    """Has it sys.monitoring?"""
    return int(version.partition(".")[2]) >= 12


VERSIONS = sorted(set(interpreters()) & {"3.9", "3.10", "3.11", "3.12", "3.13", "3.14"})
WRITERS = ("native", "python")
BOTH = [(version, writer) for version in VERSIONS for writer in WRITERS]
AGENTS = str(hook_folder().parents[1])


def run(
    folder: Path, code: str, version: str = "", writer: str = "python", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run it with the tracer at hand; `NATIVE` says which writer is meant."""
    interpreter = interpreters()[version] if version else sys.executable
    paths = [AGENTS, str(folder)]
    if writer == "native":
        paths.insert(0, str(native_folder(interpreter)))
    head = f"NATIVE = {writer == 'native'}\nfrom mldebug_training.trace import *\n"
    (folder / "job.py").write_text(head + textwrap.dedent(code))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": ":".join(paths), **more}
    return subprocess.run(
        [interpreter, "job.py"], env=env, cwd=folder, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip


def words(folder: Path, code: str, version: str = "", writer: str = "python") -> Words:
    """The ring `out.ring` that a program leaves which runs without a complaint."""
    done = run(folder, code, version, writer)
    assert (done.returncode, done.stderr) == (0, ""), done
    return Words(folder / "out.ring")


SHAPES = """
    import sys, threading
    def plain(): return inner()
    def inner(): return 1
    def numbers():
        yield 1
        yield 2
    def fails(): raise ValueError
    def catches():
        try:
            fails()
        except ValueError:
            return 2
    def key(one): return -one
    def main():
        plain()
        list(numbers())
        catches()
        assert sorted([1, 3, 2], key=key) == [3, 2, 1]
        other = threading.Thread(target=plain, name="other")
        other.start()
        other.join()
    with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE):
        main()
    main()
"""


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_calls_of_all_threads_come_in_order_and_depth(
    tmp_path: Path, version: str, writer: str
) -> None:
    found = words(tmp_path, SHAPES, version, writer)
    result = found.reported("MainThread", "call", "unwind")
    assert result[:3] == ["call main", " call plain", "  call inner"]
    assert result.count("  unwind fails") == 1
    assert result.count(" call key") == 3
    assert found.reported("other", "call") == ["call plain", " call inner"]
    assert found.reported()[-1] == "return main"
    times = [one.ns for one in found.events if one.thread == "MainThread"]
    assert times == sorted(times)
    assert (found.state, found.why) == (4, "")
    assert found.engine.endswith(writer)
    assert found.engine.startswith("monitoring" if modern(version) else "profile")
    assert found.python == f"CPython {found.python.partition(' ')[2]}"


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_lines_are_those_that_ran(tmp_path: Path, version: str, writer: str) -> None:
    code = """
        def branches(one):
            if one:
                return 1
            return 2
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE, lines=True, calls=False):
            branches(0)
            branches(1)
    """
    found = words(tmp_path, code, version, writer)
    lines = [one.line for one in found.events if one.kind == "line" and one.function == "branches"]
    assert lines == [5, 7, 5, 6]
    assert {one.kind for one in found.events} == {"line"}


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_nothing_is_disturbed(tmp_path: Path, version: str, writer: str) -> None:
    """Recursion to its limit, exceptions through generators, and an interpreter that ends inside of it."""
    code = """
        import sys
        def deep(number): return deep(number + 1)
        def throws():
            try:
                yield 1
            except KeyError:
                yield 2
        tracer = trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE)
        tracer.begin()
        for _ in range(2):
            try:
                deep(0)
            except RecursionError:
                pass
        running = throws()
        next(running)
        assert running.throw(KeyError()) == 2
        class Last:
            def __del__(self): deep_end()
        def deep_end(): return 1
        kept = Last()
    """
    found = words(tmp_path, code, version, writer)
    assert max(one.depth for one in found.events) > 800
    if writer == "native" or modern(version):
        assert "throws" in " ".join(found.reported("MainThread", "call"))
        assert found.why == ""
    else:  # said, where CPython has taken it out
        assert "recursion" in found.why


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_a_forked_child_has_a_ring_of_its_own(tmp_path: Path, version: str, writer: str) -> None:
    code = """
        import os, sys
        def parent(): return 1
        def child(): return 2
        tracer = trace("uninstalled", ring="out.ring", size=8 << 20, native=NATIVE)
        tracer.begin()
        parent()
        sys.stdout.flush()
        pids = []
        for _ in range(3):
            pid = os.fork()
            if not pid:
                for _ in range(100):
                    child()
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        parent()
        tracer.end()
    """
    mine = words(tmp_path, code, version, writer)
    assert "child" not in " ".join(mine.reported())
    assert len(mine.reported("MainThread", "call")) == 2
    others = [Words(path) for path in tmp_path.glob("out.ring.*")]
    assert len(others) == 3
    for other in others:
        assert other.reported("MainThread", "call").count("call child") == 100
        assert len(other.data) == 1 << 20
        assert other.pid != mine.pid


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_coroutines_and_generators_leave_as_often_as_they_enter(
    tmp_path: Path, version: str, writer: str
) -> None:
    code = """
        import asyncio
        async def sleeps(turns):
            for _ in range(turns):
                await asyncio.sleep(0)
            return turns
        async def numbers():
            for one in range(3):
                await asyncio.sleep(0)
                yield one
        def inner():
            yield 1
            yield 2
        def outer():
            yield from inner()
        async def fails():
            await asyncio.sleep(0)
            raise KeyError
        async def main():
            told = await asyncio.gather(sleeps(3), sleeps(5), fails(), return_exceptions=True)
            assert told[:2] == [3, 5] and isinstance(told[2], KeyError)
            assert [one async for one in numbers()] == [0, 1, 2]
            assert list(outer()) == [1, 2]
            early = inner()
            next(early)
            early.close()
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE):
            asyncio.run(main())
    """
    found = words(tmp_path, code, version, writer)
    enters, leaves = ("call", "resume"), ("return", "yield", "unwind")
    for name in ("main", "sleeps", "numbers", "inner", "outer", "fails"):
        mine = [one.kind for one in found.events if one.function == name]
        assert sum(kind in enters for kind in mine) == sum(kind in leaves for kind in mine) > 0, (
            mine
        )
    assert found.events[-1].depth == 0
    assert any((one.function, one.kind) == ("fails", "unwind") for one in found.events)


@pytest.mark.parametrize("writer", WRITERS)
def test_children_forked_among_busy_threads_have_whole_rings(tmp_path: Path, writer: str) -> None:
    code = """
        import os, threading
        def leaf(): return 1
        def busy(end):
            while not end.is_set():
                leaf()
        def child():
            other = threading.Thread(target=leaf, name="other")
            other.start()
            other.join()
        def main(end):
            some = [threading.Thread(target=busy, args=(end,)) for _ in range(3)]
            for one in some:
                one.start()
            for turn in range(20):
                pid = os.fork()
                if not pid:
                    child()
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
            end.set()
            for one in some:
                one.join()
        with trace("uninstalled", ring="out.ring", size=8 << 20, native=NATIVE):
            main(threading.Event())
    """
    mine = words(tmp_path, code, "", writer)
    assert not any(one.function == "child" for one in mine.events)
    others = [Words(path) for path in tmp_path.glob("out.ring.*")]
    assert len(others) == 20
    for other in others:
        assert next(one.strip() for one in other.reported("MainThread", "call")) == "call child"
        assert [one.strip() for one in other.reported("other", "call")] == ["call leaf"]
        assert "busy" not in {one.function for one in other.events}


CHILDREN = """
    import glob, multiprocessing, os, sys, time
    def work(fails):
        if fails: sys.exit(1)
    def child(fails, daemon):
        one = multiprocessing.get_context("fork").Process(target=work, args=(fails,), daemon=daemon)
        one.start()
        one.join()
        return [os.stat(path).st_size for path in glob.glob(f"/dev/shm/mldebug_trace-{one.pid}-*")]
    with trace("uninstalled", size=8 << 20, native=NATIVE) as tracer:
        print(child(False, False), child(True, False), child(False, True))
        for path in glob.glob("/dev/shm/mldebug_trace-*"):
            with open(path, "rb") as file:
                told = file.read(4096)
            if told[124] and b"job.py" in told and str(os.getpid()) not in path:
                os.unlink(path)
"""


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_a_worker_that_ends_well_leaves_no_ring(tmp_path: Path, version: str, writer: str) -> None:
    """Multiprocessing ends its children by os._exit(); of one that has failed the ring stays."""
    done = run(tmp_path, CHILDREN, version, writer)
    assert (done.stdout, done.stderr) == (f"[] [{1 << 20}] []\n", "")


@pytest.mark.parametrize("writer", WRITERS)
def test_workers_that_end_well_do_not_fill_the_disk(tmp_path: Path, writer: str) -> None:
    """A DataLoader has new ones in each epoch: of a named ring each would leave another file."""
    code = """
        import multiprocessing, os, sys
        def work(fails):
            if fails: sys.exit(1)
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE):
            for fails in (False, True, False):
                one = multiprocessing.get_context("fork").Process(target=work, args=(fails,), daemon=True)
                one.start()
                one.join()
    """
    done = run(tmp_path, code, "", writer)
    assert (done.returncode, done.stderr) == (0, "")
    (left,) = tmp_path.glob("out.ring*")  # and its name is never the parent's
    assert left.name == f"out.ring.{Words(left).pid}"
    assert Words(left).reported("MainThread", "unwind") == ["unwind work"]


def test_rings_of_workers_never_push_out_that_of_a_rank(tmp_path: Path) -> None:
    for number in range(2 * KEEP_RINGS):
        path = tmp_path / f"{ring.PREFIX}999999{number}-1"
        path.write_bytes(bytes(124) + bytes([number > 0]) + bytes(3))
        os.utime(path, (time.time(), time.time() - 60 + number))
    sweep(str(tmp_path))
    left = sorted(int(one.name.partition("-")[2][6:-2]) for one in tmp_path.iterdir())
    assert left == [0, *range(KEEP_RINGS, 2 * KEEP_RINGS)]


@pytest.mark.parametrize(("version", "writer"), [one for one in BOTH if not modern(one[0])])
def test_a_profiler_of_the_job_comes_first_and_the_ring_says_so(
    tmp_path: Path, version: str, writer: str
) -> None:
    code = """
        import sys
        def before(): return 1
        def after(): return 2
        seen = []
        def profiler(frame, event, arg): seen.append(event)
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE) as tracer:
            before()
            sys.setprofile(profiler)
            after()
            assert seen.count("call") == 1, seen
            with open(tracer.path, "rb") as file:
                told = file.read(1000)
            assert b"profiler of its own" in told, told[352:]
            assert told[168] == 3
            sys.setprofile(None)
    """
    found = words(tmp_path, code, version, writer)
    assert found.reported("MainThread", "call") == ["call before"]


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_a_tracer_that_was_there_before_is_left_alone(
    tmp_path: Path, version: str, writer: str
) -> None:
    code = """
        import sys
        seen = []
        def profiler(frame, event, arg): seen.append(frame.f_code.co_name)
        sys.setprofile(profiler)
        def works(): return 1
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE) as tracer:
            works()
            assert sys.getprofile() is profiler
        sys.setprofile(None)
        assert "works" in seen
        print(tracer.why, tracer.path)
    """
    done = run(tmp_path, code, version, writer)
    assert done.returncode == 0, done
    if modern(version):
        assert "call works" in Words(tmp_path / "out.ring").reported()
    else:
        assert done.stderr == "mldebug: tracing is off: the job has a profiler of its own\n" or (
            writer == "native" and "profiler of" in done.stdout
        )


@pytest.mark.parametrize(("version", "writer"), [one for one in BOTH if modern(one[0])])
@pytest.mark.parametrize("lines", [False, True])
def test_a_tool_that_switches_lines_off_as_coverage_does_sees_each_of_them(
    tmp_path: Path, version: str, writer: str, lines: bool
) -> None:
    """Each tool of sys.monitoring has its own switches, and ours turns all of them on again when it begins."""
    code = f"""
        import sys
        seen = set()
        def line(code, number):
            seen.add((code.co_name, number))
            return sys.monitoring.DISABLE
        def works(one):
            if one:
                return 1
            return 2
        sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "coverage")
        sys.monitoring.register_callback(sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE, line)
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE)
        works(0)
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE, lines={lines}):
            works(1)
            works(0)
        assert {{number for name, number in seen if name == "works"}} == {{10, 11, 12}}, seen
        assert sys.monitoring.get_tool(sys.monitoring.COVERAGE_ID) == "coverage"
        assert not any(map(sys.monitoring.get_tool, (3, 4)))
    """
    found = words(tmp_path, code, version, writer)
    assert found.reported("MainThread", "call") == ["call works", "call works"]
    mine = [one.line for one in found.events if one.kind == "line" and one.function == "works"]
    assert mine == ([10, 11, 10, 12] if lines else [])


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("place", ["/nosuch/folder/out.ring", "/proc/out.ring", "full"])
def test_without_a_place_tracing_is_off_and_the_job_goes_on(
    tmp_path: Path, writer: str, place: str
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))"
    code = f"""
        {limit if place == "full" else ""}
        def works(): return 1
        with trace("uninstalled", ring="{"out.ring" if place == "full" else place}", native=NATIVE) as tracer:
            for _ in range(10):
                works()
        assert tracer.path is None
        print(works())
    """
    done = run(tmp_path, code, "", writer)
    assert (done.returncode, done.stdout) == (0, "1\n"), done
    assert done.stderr.startswith("mldebug: tracing is off: ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.ring*"))


@pytest.mark.parametrize("place", [None, "out.ring"])
def test_a_trace_that_begins_again_takes_the_place_of_its_own_ring(
    tmp_path: Path, place: str | None
) -> None:
    """Around each step of a training it would fill the disk, or what NCCL and DataLoader need of /dev/shm."""
    code = f"""
        import glob, os
        def works(turn): return turn
        for turn in range(5):
            with trace("uninstalled", ring={place!r}, size=1 << 20) as tracer:
                works(turn)
        rings = glob.glob(f"/dev/shm/mldebug_trace-{{os.getpid()}}-*") + glob.glob("out.ring*")
        print(len(rings))
        for one in rings:
            assert one == {place!r} or os.unlink(one) is None
    """
    done = run(tmp_path, code)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize(("free", "size"), [(64, 4), (8, 1), (7, 0)])
def test_shared_memory_is_left_to_nccl_and_dataloader(tmp_path: Path, free: int, size: int) -> None:
    """A container has 64 MiB of it by default: a job must not fail for want of what its trace has taken."""
    code = f"""
        import os, types
        found = types.SimpleNamespace(f_blocks=1 << 14, f_bavail={free} << 8, f_frsize=4096)
        os.statvfs = lambda place: found
        def works(): return 1
        with trace("uninstalled") as tracer:
            works()
        print(os.stat(tracer.path).st_size >> 20 if tracer.path else 0)
        if tracer.path: os.unlink(tracer.path)
    """
    done = run(tmp_path, code)
    assert done.stdout == f"{size}\n"
    assert ("tracing is off: /dev/shm: no space left on device" in done.stderr) is (size == 0)


KILLED = """
    import os, threading, time
    def leaf(number): return number
    def branch(number): return leaf(number) + leaf(number)
    def busy():
        while True:
            branch(1)
    def main(ready):
        for _ in range(2):
            threading.Thread(target=busy, daemon=True).start()
        os.write(ready, b"x")
        busy()
    def child(turn, ready):
        trace("uninstalled", ring=f"{turn}.ring", size=1 << 18, native=NATIVE).begin()
        main(ready)
    for turn in range(KILLS):
        reads, ready = os.pipe()
        pid = os.fork()
        if not pid:
            child(turn, ready)
        os.read(reads, 1)
        time.sleep(turn * 7 % 60 * 0.0007)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(reads)
        os.close(ready)
"""
KILLS = max(30, int(os.environ.get("MLDEBUG_KILL_ROUNDS", "0")) // 2)  # by each writer


def hold_to_it(found: Words) -> None:
    assert found.events
    allowed = {"busy", "branch", "leaf", "main", "child"}
    assert {one.function for one in found.events} <= allowed
    for thread in {one.thread for one in found.events}:
        mine = [one for one in found.events if one.thread == thread]
        assert [one.ns for one in mine] == sorted(one.ns for one in mine)
        for before, after in itertools.pairwise(mine):
            if before.chunk == after.chunk and (before.kind, before.function) == ("call", "branch"):
                assert (after.kind, after.function) == ("call", "leaf")
                assert after.depth == before.depth + 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("writer", WRITERS)
def test_killed_while_it_writes_the_ring_is_whole(tmp_path: Path, writer: str) -> None:
    done = run(tmp_path, KILLED.replace("KILLS", str(KILLS)), "", writer)
    assert (done.returncode, done.stderr) == (0, ""), done
    for turn in range(KILLS):
        hold_to_it(Words(tmp_path / f"{turn}.ring"))


@pytest.mark.parametrize("writer", WRITERS)
def test_a_busy_thread_never_pushes_out_what_a_stuck_one_did_last(
    tmp_path: Path, writer: str
) -> None:
    code = """
        import threading
        def stuck(go):
            waits_here(go)
        def waits_here(go):
            go.wait()
        def busy(): return 1
        with trace("uninstalled", ring="out.ring", size=1 << 18, native=NATIVE):
            go = threading.Event()
            thread = threading.Thread(target=stuck, args=(go,), name="stuck")
            thread.start()
            for _ in range(40000):
                busy()
            go.set()
            thread.join()
    """
    found = words(tmp_path, code, "", writer)
    assert found.reported("stuck", "call") == ["call stuck", " call waits_here"]
    assert len(found.reported()) < 20000  # most of what the busy one did is gone


def test_a_handler_of_the_job_may_raise_anywhere(tmp_path: Path) -> None:
    code = """
        import signal, time
        def handler(*_): raise TimeoutError
        signal.signal(signal.SIGALRM, handler)
        def leaf(): return 1
        caught = 0
        tracer = trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE)
        tracer.begin()
        for _ in range(100):
            until = time.monotonic() + 60
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                while time.monotonic() < until:
                    exec("def fresh(): return 1\\nfresh()", {"__name__": "job", "__file__": __file__})
                    leaf()
            except TimeoutError:
                caught += 1
        tracer.end()
        assert caught >= 98, caught
    """
    assert words(tmp_path, code, "", "native").events


@pytest.mark.parametrize("version", VERSIONS)
def test_times_are_those_of_the_monotonic_clock(tmp_path: Path, version: str) -> None:
    """The writer in C reads them off the processor: busy, after pauses, and from several threads."""
    code = """
        import threading, time
        stamps = []
        def at(before): pass
        def busy(turns):
            for turn in range(turns):
                for _ in range(300):
                    before = time.monotonic_ns()
                    at(before)
                    stamps.append((before, time.monotonic_ns()))
                time.sleep(0.003)
        with trace("uninstalled", ring="out.ring", size=8 << 20, native=NATIVE):
            busy(40)
            time.sleep(1.2)
            one = threading.Thread(target=busy, args=(4,))
            one.start()
            one.join()
        with open("stamps", "w") as file:
            file.write(repr(stamps))
    """
    found = words(tmp_path, code, version, "native")
    stamps = ast.literal_eval((tmp_path / "stamps").read_text())
    calls = [event.ns for event in found.events if (event.kind, event.function) == ("call", "at")]
    assert len(calls) == len(stamps) == 44 * 300
    wrong = [at for at, (begin, end) in zip(sorted(calls), stamps, strict=True)
             if not begin - 2000 <= at <= end + 2000]  # fmt: skip
    assert not wrong


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_steps_stand_among_the_calls(tmp_path: Path, version: str, writer: str) -> None:
    code = """
        from mldebug_training import heartbeat
        def train_step(): return 1
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE):
            for step in range(1, 4):
                train_step()
                heartbeat(step)
    """
    found = words(tmp_path, code, version, writer)
    result = found.reported("MainThread", "call", "step")
    assert result == [word for step in "123" for word in ("call train_step", f"step {step}")]
    assert found.step == 3


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_it_begins_at_a_step(tmp_path: Path, version: str, writer: str) -> None:
    code = """
        from mldebug_training import heartbeat
        def train_step(): return 1
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE, start="step:2") as tracer:
            for step in range(1, 5):
                train_step()
                heartbeat(step)
                assert (tracer.path is None) is (step < 3)
    """
    found = words(tmp_path, code, version, writer)
    assert found.reported("MainThread", "call", "step") == [
        "call train_step",
        "step 3",
        "call train_step",
        "step 4",
    ]
    assert found.first_steps == [2]


@pytest.mark.parametrize(("version", "writer"), BOTH)
@pytest.mark.parametrize("stop", ["step:2", "validate", "job:validate"])
def test_it_stops_at_a_step_or_a_function(
    tmp_path: Path, version: str, writer: str, stop: str
) -> None:
    """The ring is open until the process ends: a rank that dies later has it still."""
    code = f"""
        import os, sys
        sys.modules["job"] = sys.modules["__main__"]
        __name__ = "job"
        from mldebug_training import heartbeat
        def train_step(): return 1
        def validate(): return 2
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE, stop="{stop}") as tracer:
            for step in range(1, 5):
                train_step()
                heartbeat(step)
                if step == 2: validate()
            opened = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd") if fd != "9999" and os.path.exists(f"/proc/self/fd/{{fd}}")]
            assert os.path.abspath("out.ring") in opened
            if not os.fork():
                train_step()
                os._exit(0)
            os.wait()
    """
    found = words(tmp_path, code, version, writer)
    wanted = ["call train_step", "step 1", "call train_step", "step 2"]
    assert found.reported("MainThread", "call", "step") == wanted[: 3 if stop == "step:2" else 4]
    assert (found.state, found.why) == (4, f"{stop} was reached")
    assert len(list(tmp_path.glob("out.ring*"))) == 1


@pytest.mark.parametrize(("version", "writer"), BOTH)
def test_a_signal_begins_and_ends_it(tmp_path: Path, version: str, writer: str) -> None:
    """The one that comes too often does nothing: by its default action it would end the job."""
    code = """
        import os, signal
        def works(turn): return turn
        def before(): return works(0)
        def after(): return works(2)
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE,
                   start="signal:USR2", stop="signal:USR2") as tracer:
            before()
            assert tracer.path is None
            os.kill(os.getpid(), signal.SIGUSR2)
            works(1)
            os.kill(os.getpid(), signal.SIGUSR2)
            after()
            os.kill(os.getpid(), signal.SIGUSR2)
            after()
        os.kill(os.getpid(), signal.SIGUSR2)
        after()
    """
    assert words(tmp_path, code, version, writer).reported("MainThread", "call") == ["call works"]


def test_a_signal_that_the_job_uses_is_left_alone(tmp_path: Path) -> None:
    code = """
        import faulthandler, os, signal
        def works(): return 1
        faulthandler.register(signal.SIGUSR2)
        with trace("uninstalled", ring="out.ring", size=1 << 20, start="signal:USR2") as tracer:
            works()
        with open("/proc/self/status") as file:
            caught = int(next(one for one in file if one.startswith("SigCgt")).split()[1], 16)
        assert caught >> (signal.SIGUSR2 - 1) & 1 and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
        print(tracer.path, tracer.engine)
    """
    done = run(tmp_path, code)
    assert done.stdout.startswith("None ")
    assert done.stderr == "mldebug: tracing is off: the job uses signal 12 itself\n"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_ring_that_is_made_late_knows_the_step(tmp_path: Path, writer: str) -> None:
    code = """
        from mldebug_training import heartbeat
        def train_step(): return 1
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE):
            heartbeat(41)
            train_step()
    """
    found = words(tmp_path, code, "", writer)
    assert found.step == 41
    assert found.first_steps == [41]


@pytest.mark.parametrize(("version", "writer"), BOTH)
@pytest.mark.parametrize("lines", [False, True])
def test_debuggers_and_profilers_of_the_job_work_as_without(
    tmp_path: Path, version: str, writer: str, lines: bool
) -> None:
    """cProfile and a trace function inside of it: both see what they would have seen, and what they put back is ours again."""
    code = f"""
        import cProfile, io, pstats, sys
        def works(): return 1
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE, lines={lines}):
            works()
            profile = cProfile.Profile()
            profile.runcall(works)
            seen = []
            def tracer(frame, event, arg):
                seen.append(event)
                return tracer
            found = sys.gettrace()
            sys.settrace(tracer)
            works()
            sys.settrace(found)
            works()
        told = io.StringIO()
        pstats.Stats(profile, stream=told).print_stats()
        assert "(works)" in told.getvalue()
        assert seen[:3] == ["call", "line", "return"], seen
    """
    calls = words(tmp_path, code, version, writer).reported("MainThread", "call")
    assert "call works" in calls
