"""Real probes with gloo: results, what ends them, and that nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from mldebug_agents.probes.history.store import add_runs, load
from processes.agent.light import light_job
from processes.harness import environment_of_jobs, light_python, wait_for
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
if find_spec("torch") is None:  # not imported: this process would be taken for a training job
    pytest.skip("a probe needs PyTorch", allow_module_level=True)

MANY = ("--ops", "all_reduce", "--sizes", "1MiB", "--repeats", "1000")
ENDLESS = (*MANY, "--sizes", ",".join(f"{n}B" for n in range(1_048_576, 1_048_576 + 4000, 4)))


ALONE = "MLDEBUG_TEST_ALONE"
NAMESPACES = ("unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc")


def alone(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """Run the test again in a PID namespace of its own: a job of another test would end or refuse the probe."""

    @wraps(test)
    def again(tmp_path: Path) -> None:
        if ALONE in os.environ:
            test(tmp_path)
            return
        user = () if os.geteuid() == 0 else ("--map-root-user",)
        here = (*NAMESPACES, *user)
        if subprocess.run([*here, "true"], check=False, capture_output=True).returncode:
            assert "CI" not in os.environ, "CI must be able to make a PID namespace"
            pytest.skip("this user may not make a PID namespace")
        words = (*here, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
        words = (*words, "--basetemp", str(tmp_path / "again"))  # that of real root may be there
        done = subprocess.run(
            [*words, f"{__file__}::{test.__name__}"],
            env={
                **os.environ,
                ALONE: "1",
                "PYTEST_ADDOPTS": "",
            },  # a cache of its own is no option without a cache
            check=False,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return again


class Probe:
    """`mldebug probe collectives` or `curve`, marked so that each of its processes is known."""

    def __init__(
        self, folder: Path, *words: str, more: Mapping[str, str] = {}, verb: str = "collectives"
    ) -> None:
        if not {"--python", "--read"} & set(words):
            words = (*words, "--python", str(light_python(folder)))
        beside = () if ALONE in os.environ else ("--beside-jobs",)
        self.mark = uuid.uuid4().hex
        own = {"MARK": self.mark, "MLDEBUG_PROBE_LOCK": str(folder / "lock")}
        environment = environment_of_jobs(folder) | own | dict(more)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mldebug",
                "probe",
                verb,
                "--device",
                "cpu",
                *beside,
                *(() if "--state-dir" in words else ("--state-dir", str(folder / "state"))),
                *words,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def end(self) -> tuple[int, str, str]:
        """Code, stdout and stderr, after all of its processes are gone."""
        out, err = self.process.communicate(timeout=240)
        wait_for("the end of its processes", lambda: not self.pids())
        return self.process.returncode, out, err

    def pids(self) -> list[int]:
        """All processes with its mark but those that are dead."""
        return [pid for pid in everybody() if self.mark in environ_of(pid)]

    def ranks(self) -> list[int]:
        """Its ranks: forked by a launcher, with a communicating library mapped."""
        return [pid for pid in self.pids() if "inside" in words_of(pid) and parent_is_ours(pid)]


def everybody() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environ_of(pid: int) -> str:
    return read(f"/proc/{pid}/environ")


def words_of(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline")


def parent_is_ours(pid: int) -> bool:
    parent = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(parent) and "inside" in words_of(int(parent[1]))


def read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


@contextmanager
def probing(folder: Path, *words: str) -> Iterator[Probe]:
    """One that is ended at the end, whatever came."""
    probe = Probe(folder, *words)
    try:
        yield probe
    finally:
        probe.process.kill()
        probe.process.communicate()


def first_row(probe: Probe) -> str:
    """Wait until something was measured."""
    assert probe.process.stdout is not None
    for line in probe.process.stdout:
        if line.startswith("all_reduce"):
            return line
    raise AssertionError("nothing was measured: " + probe.process.communicate()[1])


def ended_when(folder: Path, act: Callable[[Probe], object]) -> tuple[int, str, str]:
    """What comes of a long probe with which something happens in the middle."""
    with probing(folder, *ENDLESS) as probe:
        first = first_row(probe)
        act(probe)
        code, out, err = probe.end()
        return code, first + out, err


def test_one_object_for_each_op_and_size(tmp_path: Path) -> None:
    words = ("--nproc", "2", "--sizes", "1MiB,2MiB", "--ops", "all_reduce,reduce_scatter", "--json")
    code, out, err = Probe(tmp_path, *words).end()
    assert code == 0, err
    found = json.loads(out)
    assert [(one["op"], one["bytes"]) for one in found] == [
        ("all_reduce", 1 << 20),
        ("all_reduce", 1 << 21),
        ("reduce_scatter", 1 << 20),
        ("reduce_scatter", 1 << 21),
    ]
    for one in found:
        assert list(one) == [
            *("op", "bytes", "ranks", "time_seconds", "algbw_bytes_per_second"),
            *("busbw_bytes_per_second", "per_rank", "correct"),
        ]
        assert list(one["time_seconds"]) == ["min", "median", "max", "p99"]
        assert (one["ranks"], one["correct"]) == (2, True)
        assert [each["rank"] for each in one["per_rank"]] == [0, 1]


@pytest.mark.parametrize(  # sums in every dtype and world: tests/unit/probes/test_figures.py
    ("ranks", "dtype"),
    [
        pytest.param(2, "float32", marks=pytest.mark.long),
        (3, "int8"),
        pytest.param(4, "float64", marks=pytest.mark.long),
    ],
)
def test_all_collectives_carry_the_right_values(tmp_path: Path, ranks: int, dtype: str) -> None:
    words = ("--nproc", str(ranks), "--sizes", "1B,100KiB", "--dtype", dtype, "--repeats", "3")
    code, out, err = Probe(tmp_path, *words, "--json").end()
    assert code == 0, err
    found = json.loads(out)
    assert {one["op"] for one in found} == {
        *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
        *("all_to_all", "send_recv", "barrier"),
    }
    assert all(one["correct"] for one in found if one["op"] != "barrier")


def test_table_csv_and_metrics(tmp_path: Path) -> None:
    places = ("--csv", str(tmp_path / "t.csv"), "--textfile", str(tmp_path / "t.prom"))
    code, out, err = Probe(tmp_path, "--sizes", "1KiB", "--ops", "broadcast,barrier", *places).end()
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["broadcast", "barrier"]
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 3
    assert 'op="broadcast",bytes="1024",ranks="2"' in (tmp_path / "t.prom").read_text()


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "t.png"
    words = ("--sizes", "1KiB,4KiB", "--ops", "broadcast", "--repeats", "3", "--plot", str(picture))
    code, _, err = Probe(tmp_path, *words).end()
    assert code == 0, err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_payloads_that_are_the_same_in_whole_elements_are_measured_once(tmp_path: Path) -> None:
    words = ("--sizes", "1B-16B", "--ops", "all_reduce,all_gather", "--repeats", "3", "--json")
    code, out, err = Probe(tmp_path, *words).end()
    assert code == 0, err
    assert [(one["op"], one["bytes"]) for one in json.loads(out)] == [
        *(("all_reduce", 4), ("all_reduce", 8), ("all_reduce", 16)),
        *(("all_gather", 8), ("all_gather", 16)),
    ]


def test_a_table_that_nobody_can_take_is_no_fault_of_the_probe(tmp_path: Path) -> None:
    for place, code, value in (
        ("/dev/full", 70, "the output cannot be written"),
        ("closed", 141, ""),
    ):
        sink = "| true" if place == "closed" else f"> {place}"
        words = " ".join(("probe", "collectives", "--device", "cpu", "--beside-jobs", *MANY[:4]))
        own = {"MLDEBUG_PROBE_LOCK": str(tmp_path / "lock")}
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m mldebug {words} {sink}; exit ${{PIPESTATUS[0]}}"],
            env=environment_of_jobs(tmp_path) | own, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert value in done.stderr
        assert "the probe failed" not in done.stderr


PLANTED = """
import importlib.abc, importlib.util, os, sys
class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed.distributed_c10d":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), plant(module))
        return spec
def plant(module):
    real = module.all_reduce
    def all_reduce(tensor, *words, **more):
        told = real(tensor, *words, **more)
        if os.environ["RANK"] == "1" and tensor.numel() > 1000:
            tensor[777] += 1
        return told
    module.all_reduce = all_reduce
sys.meta_path.insert(0, Plant())
"""


def test_one_wrong_element_of_one_rank_is_found(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLANTED)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ("--sizes", "1KiB,64KiB", "--ops", "all_reduce,broadcast", "--python", str(python))
    code, out, err = Probe(tmp_path, *words, "--repeats", "3").end()
    assert code == 1, err
    rows = {tuple(line.split()[:2]): line.split()[-1] for line in out.splitlines()[2:]}
    assert rows["all_reduce", "1KiB"] == rows["broadcast", "64KiB"] == "ok"
    assert rows["all_reduce", "64KiB"] != "ok"
    code, out, err = Probe(tmp_path, *words, "--repeats", "3", "--json").end()
    assert code == 1, err
    (wrong,) = [one for one in json.loads(out) if one["correct"] is False]
    assert (wrong["op"], wrong["bytes"]) == ("all_reduce", 1 << 16)
    assert [(one["rank"], one["correct"]) for one in wrong["per_rank"]] == [(0, True), (1, False)]


@pytest.mark.long  # as the next one, whose text has to be whole
def test_an_interrupt_prints_what_was_measured(tmp_path: Path) -> None:
    code, out, _ = ended_when(tmp_path, lambda probe: probe.process.send_signal(signal.SIGINT))
    assert code == 130
    assert "all_reduce" in out


def test_an_interrupt_gives_whole_json(tmp_path: Path) -> None:
    with probing(tmp_path, *ENDLESS, "--json") as probe:
        assert probe.process.stderr is not None
        next(line for line in probe.process.stderr if line.startswith("all_reduce"))
        probe.process.send_signal(signal.SIGINT)
        code, out, _ = probe.end()
    assert code == 130
    assert json.loads(out)[0]["op"] == "all_reduce"


def test_one_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    code, _, _ = ended_when(tmp_path, lambda probe: probe.process.kill())
    assert code == -signal.SIGKILL


def test_a_rank_that_dies_in_the_middle_is_named(tmp_path: Path) -> None:
    def kill_one(probe: Probe) -> None:
        os.kill(max(wait_for("ranks", probe.ranks)), signal.SIGKILL)

    code, out, err = ended_when(tmp_path, kill_one)
    assert code == 1
    assert "all_reduce" in out
    assert re.search(r"the probe failed: rank [01] was killed by signal 9", err)


@alone
def test_a_job_that_appears_ends_it_at_once(tmp_path: Path) -> None:
    with probing(tmp_path, *ENDLESS) as probe:
        first_row(probe)
        with light_job(tmp_path / "job") as job:
            code, _, err = probe.end()
    assert code == 3
    assert f"the probe was ended: the training job {job.name} runs on this node" in err


@alone
def test_beside_a_job_nothing_starts_unless_told(tmp_path: Path) -> None:
    words = ("--sizes", "1KiB", "--ops", "broadcast")
    with light_job(tmp_path / "job") as job:
        code, _, err = Probe(tmp_path, *words).end()
        assert code == 3
        assert f"the training job {job.name} runs on this node" in err
        code, out, err = Probe(tmp_path, *words, "--if-idle", "--python", "/bin/false").end()
        assert (code, out) == (0, "")
        assert f"the training job {job.name} runs on this node" in err
        assert not (tmp_path / "state").exists()
        code, out, err = Probe(tmp_path, *words, "--beside-jobs").end()
    assert code == 0, err
    assert "broadcast" in out


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with probing(tmp_path, *ENDLESS) as probe:
        first_row(probe)
        code, _, err = Probe(tmp_path, *MANY).end()
    assert code == 3
    assert "another probe runs on this node" in err


def test_the_duration_ends_it(tmp_path: Path) -> None:
    for seconds in (15, 45, 135):  # until it is long enough to load PyTorch and measure a size
        code, out, err = Probe(tmp_path, *ENDLESS, "--duration", f"{seconds}s").end()
        assert code == 1
        assert "the probe took too long" in err
        if "all_reduce" in out:
            break
    assert "all_reduce" in out


@pytest.mark.parametrize(
    ("words", "more", "code", "text"),
    [
        (("--device", "cuda"), {}, 3, "GPU"),
        (("--interface", "eht7"), {}, 1, "has no such interface"),
        (("--interface", "^lo"), {}, 1, "has no such interface: ^lo"),
        (("--interface", "lo,eht7"), {}, 1, "has no such interface: eht7"),
        (("--sizes", ""), {}, 2, "--sizes ''"),
        ((), {"GLOO_SOCKET_IFNAME": "eht7"}, 1, "GLOO_SOCKET_IFNAME=eht7"),
        ((), {"NCCL_ALGO": "Rign"}, 2, "NCCL_ALGO=Rign means nothing to NCCL"),
        (("--memory", "1MiB"), {}, 3, "nothing was measured: all_reduce of 67108864 bytes"),
        (
            ("--python", "/bin/true"),
            {},
            3,
            "PyTorch does not work in /bin/true: it gives no reason",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(
    tmp_path: Path, words: tuple[str, ...], more: dict[str, str], code: int, text: str
) -> None:
    probe = Probe(tmp_path, "--sizes", "64MiB", "--ops", "all_reduce", *words, more=more)
    found, _, err = probe.end()
    assert found == code, err
    sentences = [line for line in err.splitlines() if line.startswith("mldebug: ")]
    assert len(sentences) == 1
    assert text in sentences[0]
    assert "Traceback" not in err


# --- over several nodes: an ssh that stays here ------------------------------------------------------

SSH = """#!/bin/bash
while [ "$1" != "--" ]; do shift; done
[ "$2" = gone ] && { echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255; }
exec sh -c "$3"
"""


def with_ssh(folder: Path) -> dict[str, str]:
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_two_nodes_meet_at_the_first(tmp_path: Path) -> None:
    words = ("--hosts", "n[1-2]", "--nproc", "2", "--interface", "lo", "--sizes", "1KiB", "--json")
    code, out, err = Probe(tmp_path, *words, "--ops", "all_gather", more=with_ssh(tmp_path)).end()
    assert code == 0, err
    (found,) = json.loads(out)
    assert (found["ranks"], found["correct"]) == (4, True)


def test_a_curve_is_measured_over_more_and_more_nodes(tmp_path: Path) -> None:
    csv = tmp_path / "curve.csv"
    words = ("--hosts", "n[1-3]", "--nproc", "1", "--interface", "lo", "--sizes", "1KiB", "--json")
    more = with_ssh(tmp_path)
    code, out, err = Probe(tmp_path, *words, "--csv", str(csv), more=more, verb="curve").end()
    assert code == 0, err
    found = json.loads(out)
    assert [(one["nodes"], one["results"][0]["ranks"]) for one in found] == [(2, 2), (3, 3)]
    assert all(one["results"][0]["correct"] for one in found)
    assert len(csv.read_text().splitlines()) == 3


def test_a_curve_shows_what_came_before_a_node_failed(tmp_path: Path) -> None:
    words = ("--hosts", "a1,a2,gone", "--nproc", "1", "--interface", "lo", "--sizes", "1KiB")
    code, out, err = Probe(tmp_path, *words, more=with_ssh(tmp_path), verb="curve").end()
    assert code == 3
    assert "node gone cannot measure" in err
    assert out.splitlines()[-1].split()[:2] == ["2", "2"]


def test_a_node_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    words = ("--hosts", "n1,gone", "--interface", "lo", "--sizes", "1KiB")
    code, _, err = Probe(tmp_path, *words, more=with_ssh(tmp_path)).end()
    assert code == 3
    assert "node gone cannot measure" in err
    assert "No route to host" in err
    assert "this must work without a password: ssh gone true" in err


def test_a_node_whose_rank_dies_is_named(tmp_path: Path) -> None:
    words = (*ENDLESS, "--hosts", "n1,n2", "--nproc", "1", "--interface", "lo")
    probe = Probe(tmp_path, *words, more=with_ssh(tmp_path))
    try:
        first_row(probe)
        os.kill(max(wait_for("ranks", probe.ranks)), signal.SIGKILL)
        code, _, err = probe.end()
    finally:
        probe.process.kill()
        probe.process.communicate()
    assert code == 1
    assert re.search(r"node (n1: rank 0|n2: rank 1) was killed by signal 9", err)


@alone
def test_over_nodes_a_job_that_appears_on_one_ends_it_at_once(tmp_path: Path) -> None:
    words = (*ENDLESS, "--hosts", "n1,n2", "--nproc", "1", "--interface", "lo")
    probe = Probe(tmp_path, *words, more=with_ssh(tmp_path))
    try:
        first_row(probe)
        with light_job(tmp_path / "job"):
            began = time.monotonic()
            code, _, err = probe.end()
            assert time.monotonic() - began < 20 * PATIENCE
            again, _, refused = Probe(tmp_path, *words, more=with_ssh(tmp_path)).end()
    finally:
        probe.process.kill()
        probe.process.communicate()
    assert (code, again) == (3, 3)
    assert re.search(r"was ended: node n[12]: a training job runs on this node \(pid \d+\)", err)
    assert re.search(r"a training job runs on n[12] \(pid \d+\)", refused)


def test_over_nodes_one_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    words = (*ENDLESS, "--hosts", "n1,n2", "--nproc", "1", "--interface", "lo")
    probe = Probe(tmp_path, *words, more=with_ssh(tmp_path))
    try:
        first_row(probe)
    finally:
        probe.process.kill()
    assert probe.end()[0] == -signal.SIGKILL


def test_printed_lines_work_when_typed_and_are_read_again(tmp_path: Path) -> None:
    words = ("--hosts", "localhost", "--nproc", "2", "--interface", "lo", "--ops", "reduce")
    code, out, err = Probe(tmp_path, *words, "--sizes", "1KiB", "--print-commands").end()
    assert code == 0, err
    environment = environment_of_jobs(tmp_path)
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    typed = subprocess.run(
        ["bash", "-c", out], env=environment, capture_output=True, timeout=240, check=False
    )
    assert typed.returncode == 0, typed.stderr
    (tmp_path / "told").write_bytes(typed.stdout)
    code, out, err = Probe(tmp_path, "--read", str(tmp_path / "told"), "--json").end()
    assert code == 0, err
    assert [(one["op"], one["bytes"], one["correct"]) for one in json.loads(out)] == [
        ("reduce", 1024, True)
    ]


@alone
def test_a_printed_line_measures_nothing_beside_a_job(tmp_path: Path) -> None:
    words = ("--hosts", "localhost", "--nproc", "2", "--interface", "lo", "--ops", "reduce")
    _, out, _ = Probe(tmp_path, *words, "--sizes", "1KiB", "--print-commands").end()
    environment = environment_of_jobs(tmp_path)
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with light_job(tmp_path / "job"):
        typed = subprocess.run(
            ["bash", "-c", out], env=environment, capture_output=True, timeout=240, check=False
        )
    assert typed.returncode != 0
    assert b'"event": "cell"' not in typed.stdout
    (tmp_path / "told").write_bytes(typed.stdout)
    code, _, err = Probe(tmp_path, "--read", str(tmp_path / "told")).end()
    assert code == 3
    assert re.search(r"the probe was ended: a training job runs on this node \(pid \d+\)", err)


def history(folder: Path, *words: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "mldebug", "probe", "history", "--state-dir", str(folder), *words]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@alone
def test_a_finished_probe_is_kept_and_a_shift_is_told(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    words = ("--sizes", "1KiB", "--ops", "all_reduce,barrier", "--repeats", "3", "--state-dir", str(state_dir))  # fmt: skip
    assert history(state_dir)[0] == 0  # there is none yet
    code, _, err = Probe(tmp_path, *words).end()
    assert (code, "shifted" in err) == (0, False), err
    code, runs = history(state_dir)
    assert code == 0
    assert "all_reduce" in runs
    assert "few_runs" in runs
    for series, (run,) in load(state_dir):  # that it was 100 times as fast, and twice no longer
        assert (series.ranks, series.device, series.dtype) == (2, "cpu", "float32")
        fast = msgspec.structs.replace(run, seconds=run.seconds / 100, busbw=run.busbw * 100)
        earlier = [(series, msgspec.structs.replace(fast, at=run.at - 100 + n)) for n in range(10)]
        add_runs(state_dir, [*earlier, (series, msgspec.structs.replace(run, at=run.at - 1))])
    code, out, err = Probe(tmp_path, *words, "--json").end()
    assert code == 0, err
    assert {one["op"] for one in json.loads(out)} == {"all_reduce", "barrier"}
    assert "shifted: all_reduce of 1024 bytes, 2 ranks on " in err
    code, runs = history(state_dir, "--json")
    assert (code, {one["standing"] for one in json.loads(runs)}) == (1, {"shifted"})


@alone
def test_a_history_that_cannot_be_written_is_told_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("--sizes", "1KiB", "--ops", "all_reduce", "--state-dir", str(tmp_path / "file"))
    code, out, err = Probe(tmp_path, *words).end()
    assert code == 0, err
    assert "all_reduce" in out
    assert "not kept in the history: " in err


def test_beside_jobs_nothing_is_kept(tmp_path: Path) -> None:
    words = ("--sizes", "1KiB", "--ops", "barrier", "--state-dir", str(tmp_path / "state"))
    code, _, err = Probe(tmp_path, *words, "--beside-jobs").end()
    assert code == 0, err
    assert not (tmp_path / "state").exists()


def test_8_bit_floats_are_multiplied_right(tmp_path: Path) -> None:
    """By PyTorch's own product, here on a CPU; what that of a GPU gives is measured there alone."""
    code = (
        "import torch; from mldebug_agents.probes.inside.workloads import fp8_product\n"
        "a, b = (torch.randint(-1, 2, (64, 64), dtype=torch.int8).bfloat16() for _ in 'ab')\n"
        "print(bool((fp8_product(torch, a, b)() == a @ b).all()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )  # fmt: skip
    assert done.stdout.strip() == "True", done.stderr
