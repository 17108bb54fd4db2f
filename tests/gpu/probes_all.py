"""`mldebug probe` on this machine's GPUs, one or more, typed as a person types it: figures, refusals, bad input, and what is left behind.

    PYTHONPATH=.:agents:exporters:tests python3 -u tests/gpu/probes_all.py [PART ...]     # without parts: all, in less than eight minutes

Each line says what was done, what came of it and how long it took. Exit code 1: a line is not as it should be, or had no time.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpu import probes
from gpu.probing import OP, Ended, Hog, Typed, computing, hog, typed, until, used

ALL = 460.0  # seconds
BACK = 64  # MiB that a GPU may hold more than before
GPUS = probes.gpus()
DEVICE = "cuda" if GPUS else "cpu"
BASE = 256 << 20 if GPUS else 1 << 20  # bytes
ENDLESS = (
    *("collectives", "--device", DEVICE, "--ops", OP, "--repeats", "1000", "--sizes"),
    ",".join(f"{BASE + 4 * number}B" for number in range(1000)),
)
SHORT = ("collectives", "--device", DEVICE, "--ops", OP, "--sizes", "1KiB")


class Line(NamedTuple):
    """What was done, what came of it, and whether that is as it should be."""

    done: str
    observed: str
    fine: bool


Part = Iterator[Line]


def judged(done: str, ended: Ended, code: int, text: str, more: str = "") -> Line:
    """An exit code, one sentence where something went wrong, and no process left, neither in /proc nor on a GPU."""
    gone = not ended.left and not left_on_gpus()
    fine = ended.code == code and text in ended.out + ended.err and gone
    if code in (1, 2, 3):
        fine = fine and bool(ended.sentence or "unfit: " in ended.out)
    rest = "" if gone else f" LEFT: {ended.left or computing()}"
    sentence = ended.sentence or ((ended.out + ended.err).strip().splitlines() or [""])[-1][-300:]
    return Line(done, f"exit {ended.code} in {ended.seconds:.1f} s: {sentence}{more}{rest}", fine)


def left_on_gpus() -> bool:
    """Whether somebody computes there who did not before; the driver may take a moment to forget."""
    try:
        return not until("idle GPUs", lambda: set(computing()) <= OTHERS, 10)
    except TimeoutError:
        return True


OTHERS: set[str] = set()  # pids that a part has started itself


@contextmanager
def other(left: int = -1) -> Iterator[Hog]:
    """Another program on GPU 0, whose pid is expected there meanwhile."""
    with hog(left) as one:
        OTHERS.add(str(one.process.pid))
        yield one
    OTHERS.clear()


# --- the parts -----------------------------------------------------------------------------------


def compare(folder: Path) -> Part:
    """The probe beside a bare loop and beside the seeds' way."""
    if not GPUS:
        yield Line("compare", "needs a GPU", False)
        return
    yield Line("all collectives by the command", "", probes.command_works(GPUS))
    for value, agrees in probes.compared(GPUS):
        yield Line(value, "" if agrees else "APART", agrees)


def node(folder: Path) -> Part:
    """All stages, for a person and for a program; both say the same, and memory comes back."""
    before, most = used(), [0]
    with watched(most):
        shown = typed(folder, "node", "--disk", str(folder))
    print(shown.out, flush=True)
    fit = "\nfit: " in shown.out
    yield Line("probe node", f"exit {shown.code} in {shown.seconds:.1f} s", shown.code == 0 if fit else shown.code == 1)  # fmt: skip
    yield Line("its memory", f"before {before}, at most {most[0]}, after {used()} MiB", back(before))  # fmt: skip
    ended = typed(folder, "node", "--disk", str(folder), "--json")
    answer = json.loads(ended.out)
    for one in answer["checks"]:
        yield Line(f"  {one['stage']}", f"{one['state']} {one.get('seconds', 0):.2f} s: {one['sentence']} {one.get('figures', {})}", one["state"] != "failed")  # fmt: skip
    yield Line("probe node --json", f"exit {ended.code} in {ended.seconds:.1f} s: {answer['verdict']}", answer["fit"] == fit == (ended.code == 0))  # fmt: skip


def isolate(folder: Path) -> Part:
    """One GPU has nobody to be compared with; with more of them none is bad."""
    ended = typed(folder, "isolate", "--device", DEVICE, *(("--nproc", "1") if not GPUS else ()))
    if GPUS > 1:
        yield judged("probe isolate", ended, 0, "no fault found")
    else:
        yield judged("probe isolate, one member", ended, 2, "there is nobody to compare with")


def refused(folder: Path) -> Part:
    """Somebody computes on a GPU: no probe begins, and one that runs ends at once."""
    if not GPUS:
        yield Line("refused", "needs a GPU", False)
        return
    with other() as one:
        pid = one.wait().process.pid
        for words in (SHORT, ("node",), ("isolate",)):
            yield judged(f"{words[0]}, pid {pid} computes", typed(folder, *words), 1, str(pid))
        ended = typed(folder, *SHORT, "--beside-jobs")
        yield judged("collectives --beside-jobs", ended, 0, OP)
    for words in (ENDLESS, ("node", "--stages", "matmul", "--duration", "60s")):
        yield appeared(folder, *words)


def appeared(folder: Path, *words: str) -> Line:
    """In the middle of a probe somebody begins to compute."""
    probe = Typed(folder, *words)
    until("the middle", lambda: probe.says(f"\n{OP}") or (words[0] == "node" and computing()))
    with other() as one:
        began = time.monotonic()
        one.wait()
        computes = time.monotonic()
        ended = probe.end()
        since = [ended.seconds + probe.began - at for at in (began, computes)]
        more = f"; {since[0]:.1f} s after it was started, {since[1]:.1f} s after it had its memory; {ended.rows} results"  # fmt: skip
        line = judged(f"{words[0]}, somebody appears", ended, 1, str(one.process.pid), more)
    return line._replace(fine=line.fine and since[1] < 5 and (ended.rows > 0 or words[0] == "node"))


def full(folder: Path) -> Part:
    """Hardly any memory is free."""
    if not GPUS:
        yield Line("full", "needs a GPU", False)
        return
    large = ("collectives", "--device", "cuda", "--beside-jobs", "--ops", OP, "--sizes", "4GiB")
    for left, value in ((3 << 30, "nothing was measured: "), (64 << 20, "memory")):
        with other(left) as one:
            one.wait()
            yield judged(f"collectives, {left >> 20} MiB are free", typed(folder, *large), 1, value)
            stage = typed(folder, "node", "--stages", "memory", "--beside-jobs")
            yield judged(f"node, {left >> 20} MiB are free", stage, 1, "memory")


class Bad(NamedTuple):
    """Words and variables that cannot work, the exit code, and a part of the sentence."""

    words: tuple[str, ...]
    more: Mapping[str, str]
    code: int
    statements: str


def bad_ones() -> Iterator[Bad]:
    """What needs GPUs of this machine stands last."""
    yield Bad(SHORT, {"NCCL_ALGO": "Banana"}, 2, "NCCL_ALGO=Banana means nothing to NCCL")
    interface = "NCCL_SOCKET_IFNAME" if GPUS else "GLOO_SOCKET_IFNAME"
    yield Bad(SHORT, {interface: "nosuch0"}, 1, "no such interface")
    yield Bad((*SHORT, "--interface", "nosuch0"), {}, 1, "no such interface")
    yield Bad((*SHORT, "--python", "/bin/true"), {}, 3, "PyTorch does not work in /bin/true")
    yield Bad((*SHORT, "--memory", "1KiB"), {}, 1, "nothing was measured")
    cuda = ("collectives", "--device", "cuda", "--sizes", "1KiB")
    yield Bad(cuda, {"CUDA_VISIBLE_DEVICES": ""}, 3, "GPU")
    if not GPUS:
        return
    yield Bad((*cuda, "--nproc", str(GPUS + 1)), {}, 1, f"{GPUS + 1} ranks were wanted")
    yield Bad(cuda, {"NCCL_NET": "nosuch"}, 1, "NCCL_NET=nosuch")
    yield Bad(("node", "--stages", "driver", "--require-gpus", str(GPUS + 1)), {}, 1, f"{GPUS} of {GPUS + 1} GPUs answer")  # fmt: skip


def bad(folder: Path) -> Part:
    """Each of them is one sentence, an exit code, and no process left."""
    for one in bad_ones():
        done = " ".join([*(f"{name}={value}" for name, value in one.more.items()), *one.words])
        yield judged(done, typed(folder, *one.words, more=one.more), one.code, one.statements)


def interrupted(folder: Path) -> Part:
    """The command or a rank is ended in the middle: what was measured is told, and nothing is left."""
    for name, code, value, act in ENDINGS:
        before = used()
        probe = Typed(folder, *ENDLESS, *(("--duration", "30s") if "stops" in name else ()))
        until("the first result", lambda one=probe: one.says(f"\n{OP}"))  # type: ignore[misc]
        began = time.monotonic()
        act(probe)
        ended = probe.end()
        took = f"; {ended.rows} results; all gone {time.monotonic() - began:.1f} s later"
        line = judged(name, ended, code, value, took)
        yield line._replace(fine=line.fine and ended.rows > 0 and back(before))
    if GPUS:
        yield killed_node(folder)


def killed_node(folder: Path) -> Line:
    """While it holds nearly all memory."""
    before = used()
    probe = Typed(folder, "node", "--stages", "memory")
    until("a process on a GPU", computing)
    probe.process.kill()
    ended = probe.end()
    line = judged("kill -9 of probe node in its memory stage", ended, -signal.SIGKILL, "", f"; memory {before} MiB, then {used()}")  # fmt: skip
    return line._replace(fine=line.fine and back(before))


def last_rank(probe: Typed) -> int:
    """The pid of one of its ranks."""
    return max(until("ranks", probe.ranks))


ENDINGS: tuple[tuple[str, int, str, Callable[[Typed], object]], ...] = (
    ("SIGINT", 130, OP, lambda probe: probe.process.send_signal(signal.SIGINT)),
    ("kill -9 of mldebug", -signal.SIGKILL, OP, lambda probe: probe.process.kill()),
    ("kill -9 of a rank", 1, "was killed by signal 9", lambda probe: os.kill(last_rank(probe), signal.SIGKILL)),
    ("a rank stops for ever", 1, "the probe took too long", lambda probe: os.kill(last_rank(probe), signal.SIGSTOP)),
)  # fmt: skip
PARTS: dict[str, Callable[[Path], Part]] = {
    one.__name__: one for one in (compare, node, isolate, bad, refused, full, interrupted)
}


# --- the whole -----------------------------------------------------------------------------------


@contextmanager
def watched(most: list[int]) -> Iterator[None]:
    """Note the most memory that a GPU has held meanwhile, in MiB."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.3):
            most[0] = max(most[0], *used(), 0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


def back(before: list[int]) -> bool:
    """Whether each GPU holds about as much as before, in a moment."""
    try:
        until("free memory", lambda: all(now <= then + BACK for now, then in zip(used(), before, strict=True)), 10)  # fmt: skip
    except TimeoutError:
        return False
    return True


def lines(folder: Path, names: list[str]) -> Part:
    """All parts; one that raises or has no time is a line, too."""
    end = time.monotonic() + ALL
    for name in names:
        print(f"--- {name}: {PARTS[name].__doc__}", flush=True)
        if time.monotonic() > end:
            yield Line(name, "no time was left", False)
            continue
        began = time.monotonic()
        try:
            yield from PARTS[name](folder)
        except Exception as error:  # noqa: BLE001 - the other parts are worth their time
            yield Line(name, f"{type(error).__name__}: {error}", False)
        print(f"    {time.monotonic() - began:.1f} s", flush=True)


def main() -> int:
    """Print lines as they come."""
    names = sys.argv[1:] or list(PARTS)
    print(f"{GPUS} GPUs; computing before: {computing()}; memory: {used()} MiB", flush=True)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="mldebug-probes-") as folder:
        for line in lines(Path(folder), names):
            wrong += not line.fine
            print("fine " if line.fine else "WRONG", line.done, "|", line.observed, flush=True)
    print(f"{wrong} lines are wrong" if wrong else "all fine", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
