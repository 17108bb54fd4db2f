"""docs/verdicts.md: each verdict, class and detector of the code stands there, no verdict is surer than the page says, and its sentences are the code's."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.core.model import (
    Confidence,
    Diagnosis,
    Fault,
    Job,
    LogTail,
    LostRank,
    NodeCapture,
    NodeWait,
    OpenFile,
    ProcessCapture,
    QueriedNode,
    RankIdentity,
    Verdict,
)
from mldebug.diagnosis.classify.evidence import LONG, SOFT_CLASSES
from mldebug.diagnosis.classify.gpus.gpu_faults import BEFORE, LAG, PROMPT, UNDATED
from mldebug.diagnosis.classify.tables.kernel_waits import WAIT_CHANNELS
from mldebug.diagnosis.classify.tables.native_calls import NATIVE
from mldebug.diagnosis.classify.tables.python_calls import BACKWARD, PYTHON
from mldebug.diagnosis.classify.tables.source_lines import GPU_SOURCE, SOURCE, STORE_SOURCE
from mldebug.diagnosis.diagnose import diagnose
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.goodput.straggler import Excess, Slowness, SlowRank
from mldebug.stall import decision, rules, timeouts
from mldebug.stall.signals import COLLECTIVE_TIMEOUTS
from shared.capture.flights import job, waits_in
from shared.cluster.nodes import merged, run, silent
from shared.diagnosis.builders import ALL_REDUCE, WAITER, WRAPPER, capture, process, rank, still

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/verdicts.md").read_text()
HANGS = ROOT / "tests/fixtures/h200/hangs"
TAKEN, QUIET = 1_700_000_000.0, 100.0  # builders.capture; how long the job has stood
HERE = ("load (train.py:7)", "<module> (train.py:50)")
FUSE = OpenFile(fd=7, target="/data/shard-17", kind="file", mode="r", mount="/data", fstype="fuse")
FIFO = OpenFile(fd=-1, target="/data/settings.fifo", kind="fifo", mode="r")
SURENESS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


# --- cases, each as sure as its verdict can be -------------------------------------------------------


def waits() -> ProcessCapture:
    return process(*WAITER, move=still())


def of(
    odd: ProcessCapture | None,
    *,
    at: int = 3,
    rest: ProcessCapture | None = None,
    lost: tuple[LostRank, ...] = (),
    faults: tuple[Fault, ...] = (),
) -> Diagnosis:
    """Four ranks in all_reduce, of which the one at `at` does something else, or is gone where `odd` is None."""
    gone = {one.rank for one in lost}
    ranks = (rank(n, odd if odd and n == at else rest or waits()) for n in range(4) if n not in gone)  # fmt: skip
    taken = capture(*ranks, lost=lost)
    taken = msgspec.structs.replace(taken, faults=faults, quiet_seconds=QUIET if faults else 0.0)
    return diagnose([taken]).diagnosis


def recorded(name: str) -> Diagnosis:
    """A hang of two ranks on two H200s."""
    return diagnose([taken_of(HANGS / f"{name}.json")]).diagnosis


def taken_of(file: Path) -> NodeCapture:
    return msgspec.json.decode(file.read_bytes(), type=NodeCapture)


def fault(number: int, kind: str, words: str, **more: Any) -> Fault:
    return Fault(kind=kind, words=words, tier="fatal", node="n1", rank=number, at=TAKEN - QUIET, **more)  # fmt: skip


def lost_gpu() -> Diagnosis:
    words = "Xid 79 (GPU has fallen off the bus) on GPU 0000:3b:00.0"
    return of(None, faults=(fault(1, "xid", words, by="gpu", bus_id="0000:3b:00.0"),))


def killed_for_memory() -> Diagnosis:
    words = "the kernel killed a process for memory (62.0 GiB resident), pid 4711 python"
    gone = LostRank(rank=3, pid=4711, exit_status=9, reason="killed by SIGKILL")
    return of(None, lost=(gone,), faults=(fault(3, "oom_kill", words, by="process"),))


def out_of_device_memory() -> Diagnosis:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which 1.00 GiB is free."  # fmt: skip
    hung = rank(1, process("slow_data_loader (train.py:7)", wchan="hrtimer_nanosleep", move=still()))  # fmt: skip
    hung = msgspec.structs.replace(hung, log=LogTail(path="x", lines=("step 3", text, "cleaning")))
    return diagnose([capture(rank(0, waits()), hung)]).diagnosis


def silent_node(failed: list[QueriedNode]) -> Diagnosis:
    """Six ranks on three nodes, of which the third gives no capture."""
    captures = run(3, 2)
    del captures["a3"]
    (one,) = merged(captures, failed).runs
    return diagnose(*one).diagnosis


def port_down() -> Diagnosis:
    """Four ranks on two nodes."""
    captures = run(2, 2)
    down = Fault(kind="port_down", words="port mlx5_3/1 was up and is DOWN", tier="fatal", node="a2", at=TAKEN - QUIET)  # fmt: skip
    captures = {name: msgspec.structs.replace(one, quiet_seconds=QUIET, faults=(down,) if name == "a2" else ()) for name, one in captures.items()}  # fmt: skip
    return diagnose(captures.values()).diagnosis


def one_behind() -> Diagnosis:
    everyone = tuple(range(8))
    records = {n: (waits_in("all_reduce", 5 if n == 2 else 6, ranks=everyone),) for n in everyone}
    return diagnose([job({**records}, world=8)]).diagnosis


def starting() -> Diagnosis:
    init = process("init_process_group (torch/distributed/distributed_c10d.py:1700)", WRAPPER,
                   "<module> (train.py:5)", wchan="do_poll", move=still())  # fmt: skip
    return of(None, rest=init, lost=(LostRank(rank=3),))


def without_ranks() -> Diagnosis:
    """A launcher in a rendezvous of two nodes; five minutes after it began."""
    launcher = process("next_rendezvous (torch/distributed/elastic/rendezvous/dynamic.py:1162)", "<module> (torchrun:8)")  # fmt: skip
    waits = Job(
        id="j", name="train.py", launcher="torchrun", world_size=2, launcher_pid=launcher.pid,
        started_at=1000.0, nodes=("n1",), node_list="n[1-2]", waits=NodeWait(nodes=2),
    )  # fmt: skip
    return diagnose((NodeCapture(node="n1", taken_at=1300.0, job=waits, launcher=launcher),)).diagnosis  # fmt: skip


def stopped() -> ProcessCapture:
    return process(*HERE, state="T", wchan="do_signal_stop", move=still())


def golden(name: str) -> Diagnosis:
    """The headline of a report as text."""
    head, *lines = (ROOT / f"tests/golden/{name}.txt").read_text().split("\n\n")[0].splitlines()
    verdict, _, rest = head.partition(" · confidence ")
    *summary, _ = lines  # the last line tells of the job
    return Diagnosis(
        verdict=Verdict(verdict.lower().replace(" ", "_")), confidence=Confidence(rest.split()[0]),
        summary=" ".join(summary), culprits=(), evidence=(), next_steps=(),
    )  # fmt: skip


def slow_mount() -> Diagnosis:
    """Seven of eight ranks that wait for data on a mount that has become slow."""
    evidence = RankEvidence(file_waiting=0.5, mount="/data (nfs4)", mount_device="0:52", mount_slow="reads of /data (nfs01:/data) take 48 ms instead of 3 ms since 14:02 UTC")  # fmt: skip
    shares = tuple(RankShares(rank=n, samples=495, waiting=0.1, loading=0.6 if n else 0.0, evidence=evidence if n else RankEvidence()) for n in range(8))  # fmt: skip
    ranks = tuple(RankIdentity(rank=n, world_size=8, pid=9) for n in range(8))
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=8, ranks=ranks)
    return judge_slowdown(job, Slowness(stretches=3, slower=1.8, shares=shares)).diagnosis


def slow_rank() -> Diagnosis:
    """Rank 1 of four, by the shares of a real gloo job."""
    shares = tuple(RankShares(rank=n, samples=495, waiting=wait) for n, wait in enumerate((0.32, 0.05, 0.29, 0.31)))  # fmt: skip
    cause = Excess(kind="sleep", place="extra_work (train.py:10)", own=0.28, others=0.0)
    slow = SlowRank(rank=1, waiting=0.05, excess=cause)
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=4)
    job = msgspec.structs.replace(job, ranks=tuple(RankIdentity(rank=n, world_size=4, pid=9) for n in range(4)))  # fmt: skip
    return judge_slowdown(
        job, Slowness(ranks=(slow,), loss=0.25, stretches=5, shares=shares)
    ).diagnosis


EXAMPLES: dict[Verdict, tuple[Callable[[], Diagnosis], ...]] = {
    Verdict.GPU_FAULT: (lost_gpu,),
    Verdict.OUT_OF_MEMORY: (killed_for_memory, out_of_device_memory),
    Verdict.STORAGE_FAULT: (
        lambda: of(process(*HERE, wchan="request_wait_answer", syscall="read", on=FUSE, move=still())),
        slow_mount,
    ),
    Verdict.NETWORK_FAULT: (port_down,),
    Verdict.NODE_UNREACHABLE: (
        lambda: silent_node([QueriedNode(name="a3", state="down", reason="Slurm: down")]),
    ),
    Verdict.RANK_EXITED: (
        lambda: of(None, lost=(LostRank(rank=3, pid=77, reason="killed by SIGSEGV (11)"),)),
        lambda: golden("ending-sigkill"),
    ),
    Verdict.RANK_STOPPED: (lambda: recorded("figures-stop"),),
    Verdict.DATALOADER_STALLED: (lambda: recorded("figures-worker"),),
    Verdict.RANK_BLOCKED_IO: (
        lambda: of(process(*HERE, wchan="wait_for_partner", syscall="openat", on=FIFO, move=still(span=20.0))),
    ),
    Verdict.COLLECTIVE_MISMATCH: (
        one_behind,
        lambda: of(process(ALL_REDUCE, WRAPPER, "sync (train.py:31)", move=still())),
        lambda: recorded("hook-off_by_one"),
    ),
    Verdict.INIT_INCOMPLETE: (without_ranks, starting),
    Verdict.RANK_WAITING: (lambda: recorded("hook-sleep"), lambda: recorded("figures-frozen")),
    Verdict.RANK_BUSY: (lambda: recorded("figures-loop"),),
    Verdict.JOB_PAUSED: (lambda: of(None, rest=stopped()),),
    Verdict.STRAGGLER: (slow_rank,),
    Verdict.UNKNOWN: (
        lambda: recorded("figures-kernel"),
        lambda: recorded("hook-kernel"),
        lambda: silent_node([QueriedNode(name="a3", state="unable", reason="no py-spy")]),
    ),
}  # fmt: skip


# --- the page ----------------------------------------------------------------------------------------


def table() -> dict[str, tuple[list[str], str]]:
    """Verdict -> the files that make it, and what it is at most."""
    rows = re.findall(r"^\| \[`(\w+)`\]\(#\1\) \| (.*) \| ([\w ]+) \|$", PAGE, re.MULTILINE)
    return {verdict: (re.findall(r"`([\w/.]+)`", files), most) for verdict, files, most in rows}


def section(verdict: str) -> str:
    return PAGE.split(f"\n### `{verdict}`\n")[1].split("\n#")[0]


def test_every_verdict_has_a_row_and_a_section_in_the_order_of_precedence() -> None:
    assert list(table()) == [str(one) for one in Verdict]
    assert re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) == list(table())


@pytest.mark.parametrize("verdict", Verdict)
def test_the_files_of_a_row_make_that_verdict_and_no_detector_is_left_out(verdict: Verdict) -> None:
    files, _ = table()[verdict]
    makers = {path for path in made_by(verdict) if "/detectors/" in path}
    assert all(f"Verdict.{verdict.name}" in (ROOT / file).read_text() for file in files)
    assert makers <= set(files)


def made_by(verdict: Verdict) -> set[str]:
    """All files, but for the model, that name it."""
    sources = (*ROOT.glob("mldebug/**/*.py"), *ROOT.glob("agents/**/*.py"))
    found = (file for file in sources if f"Verdict.{verdict.name}" in file.read_text())
    return {str(file.relative_to(ROOT)) for file in found} - {"mldebug/core/model/judgement.py"}


def test_every_verdict_is_given_by_the_code_and_has_an_example() -> None:
    assert all(made_by(one) for one in Verdict)
    assert [one for one in Verdict if not EXAMPLES[one]] == []


def test_every_detector_has_its_row() -> None:
    detectors = {f"mldebug/diagnosis/detectors/{file.name}" for file in ROOT.glob("mldebug/diagnosis/detectors/[a-z]*.py")}  # fmt: skip
    assert detectors <= {file for files, _ in table().values() for file in files}


@pytest.mark.parametrize("verdict", EXAMPLES)
def test_the_sentences_are_those_that_reports_print(verdict: Verdict) -> None:
    found = [case() for case in EXAMPLES[verdict]]
    quotes = re.findall(r"^> (.+)$", section(verdict), re.MULTILINE)

    assert [one.verdict for one in found] == [verdict] * len(found)
    assert quotes == [one.summary for one in found]
    assert max(found, key=exit_confidence).confidence == table()[verdict][1]


def exit_confidence(found: Diagnosis) -> int:
    return SURENESS.index(found.confidence)


def test_no_recorded_hang_is_surer_than_the_page_says() -> None:
    captures = [file for file in HANGS.glob("*.json") if "kill" not in file.stem]  # that is an end
    assert len(captures) > 40
    for file in captures:
        found = diagnose([taken_of(file)]).diagnosis
        assert exit_confidence(found) <= SURENESS.index(Confidence(table()[found.verdict][1])), (
            file.name
        )


def test_a_silent_node_that_nobody_has_given_up_is_one_sign() -> None:
    assert silent_node(silent("a3")).confidence is Confidence.LOW


# --- its tables --------------------------------------------------------------------------------------


def test_every_class_stands_in_its_row() -> None:
    rows = PAGE.split("| role | classes |")[1].split("\n\n")[0].splitlines()[2:]
    by_name = {row.split("|")[1].strip(): set(re.findall(r"`([a-z_]+)`", row)) for row in rows}
    signs: list[Any] = [*PYTHON, *NATIVE, *WAIT_CHANNELS, *SOURCE, *STORE_SOURCE, *GPU_SOURCE, BACKWARD]  # fmt: skip
    by_table = {(sign.role.value, sign.name) for sign in signs}

    assert not [(role, name) for role, name in by_table if name not in by_name[role]]
    assert {name for names in by_name.values() for name in names} == named_in_code() | {name for _, name in by_table}  # fmt: skip
    assert by_name["inert"] >= SOFT_CLASSES


def named_in_code() -> set[str]:
    """Classes that are given by code and not by a table."""
    text = "".join(file.read_text() for file in ROOT.glob("mldebug/diagnosis/classify/**/*.py"))
    plain = re.findall(r'\bname="([a-z_]+)"', text)
    plain += re.findall(r'(?:_loosely|inert)\(\s*process, "([a-z_]+)"', text)
    chosen = re.findall(r'name[ =]+"([a-z_]+)" if [\w.]+ else (?:"([a-z_]+)"|\w)', text)
    return {*plain, *(name for both in chosen for name in both if name)}


def test_the_reasons_for_unknown_are_those_of_the_code() -> None:
    files = (
        "diagnosis/classify/unknown.py",
        "diagnosis/classify/nodes.py",
        "diagnosis/exits/outcome.py",
        "diagnosis/diagnose.py",
    )
    code = "".join((ROOT / "mldebug" / file).read_text() for file in files)
    rows = PAGE.split("| the report says | because |")[1].split("\n\n")[0].splitlines()[2:]
    reasons = [row.split("|")[1].strip() for row in rows]

    assert len(reasons) == 12
    assert not [one for one in reasons if one not in code]


def test_its_figures_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split()).replace("\u00d7", "x")
    last, more = decision.LATER_CAPTURES
    settings = rules.StallSettings()
    cases = (
        f"{timeouts.FACTOR:.0f} x the 99th percentile of the last {timeouts.KEPT} pauses, at least {timeouts.LEAST:.0f} s and at most {timeouts.MOST:.0f} s",
        f"{timeouts.FACTOR:.0f} x the longest pause so far, at least {timeouts.YOUNG:.0f} s and at most {timeouts.YOUNG_MOST:.0f} s (or {timeouts.START:.2g} x the longest",
        f"has seen {timeouts.ENOUGH} pauses, or {timeouts.STEADY} even ones beside the longest, or pauses that cover {timeouts.COVERED} steps",
        f"at least {timeouts.SURVIVED:.1f} x the usual pause: {timeouts.SURVIVED * 300:.0f} s for steps of 300 s",
        f"**{rules.CLOSER} of the limit:**",
        f"blamed at {rules.ALL_PAUSE:.0f} s if they are all ranks of the job. It is {rules.STEP_PAUSE:.0f} s if there is one rank",
        f"{rules.NO_SIGNAL:.0f} s; {rules.SAYS_IT_WAITS:.0f} s while the main thread of a rank",
        f"`stall.init_timeout`, {settings.init_timeout / 60:.0f} min",
        f"{rules.BUSY_FACTOR:.0f} x the timeout, {rules.BUSY_LEAST / 60:.0f} min at least",
        f"{COLLECTIVE_TIMEOUTS['nccl']:.0f} s on NCCL, {COLLECTIVE_TIMEOUTS['gloo']:.0f} s on gloo",
        f"a second capture follows {last:.0f} s later; at {more:.0f} s one more",
        f"counts as `high` only after {LONG:.0f} s of standing still",
        f"came from {LAG:.0f} s before the job stopped",
        f"to {PROMPT:.0f} s after",
        f"faults of the last {UNDATED / 60:.0f} minutes count",
    )
    assert [one for one in cases if one not in text] == []
    assert (BEFORE, rules.BEFORE_EVIDENCE_DIES, timeouts.WIDEST) == (
        60.0,
        0.75,
        2.0,
    )  # a minute, ¾, twice
