"""Stacks as people have them: forms, prefixes, numbers of ranks, kinds of processes; no text is ever an error."""

import html
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.capture.dump_folder import captures_from_dumps
from mldebug.capture.exports.json_texts import texts_inside
from mldebug.capture.stacks.numbering import place_of
from mldebug.capture.stacks.process_kinds import ProcessKind, kind_of
from mldebug.capture.stacks.process_text import ProcessText
from mldebug.capture.stacks.reader import is_stack_line, read_text
from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.errors import EvidenceError, MldebugError

FIELD = Path(__file__).parents[2] / "fixtures" / "field" / "stacks"
POSTED = FIELD.parent / "posted"
TEXTS = sorted(path for root in (FIELD, POSTED) for path in root.rglob("*") if path.is_file() and path.name != "cases.yaml")  # fmt: skip
ALL_REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:2924)", "step (train.py:88)", "<module> (train.py:120)")  # fmt: skip
BARRIER = ("barrier (torch/distributed/distributed_c10d.py:4000)", "write (train.py:99)", "<module> (train.py:120)")  # fmt: skip


def dump(pid: int, frames: tuple[str, ...], command: str = "python train.py") -> str:
    lines = (f"Process {pid}: {command}", "Python v3.11.9 (/usr/bin/python3.11)", "", f'Thread {pid} (idle): "MainThread"')  # fmt: skip
    return "\n".join((*lines, *(f"    {frame}" for frame in frames), ""))


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        (root / f"{name}.txt").write_text(text)
    return root


def numbers(root: Path) -> dict[int, int]:
    """rank -> pid."""
    found = [rank.identity for one in captures_from_dumps(root) for rank in one.ranks]
    return {one.rank: one.pid for one in found}


# --- prefixes --------------------------------------------------------------------------------------

PREFIXES = {
    "pdsh": "gpu{0}: ",
    "srun": " {0}: ",
    "srun wide": "   {0}: ",
    "mpirun": "[1,{0}]<stdout>:",
    "prrte": "[prterun-a@1,{0}]<stdout>: ",
    "mpich": "[{0}] ",
    "torchrun": "[rank{0}]: ",
    "compose": "trainer-{0}  | ",
    "kubectl": "[pod/llama-{0}/pytorch] ",
    "ray": "(TrainWorker pid=9{0}, ip=10.0.0.{0}) ",
    "clock": "gpu{0}: 2026-11-26T04:45:42.123Z ",
    "clock first": "2026-11-26 04:45:42,123 gpu{0}: ",
    "container runtime": "[pod/llama-{0}/p] 2026-11-26T04:45:42.1Z stdout F ",
    "syslog": "Nov 26 04:45:42 gpu{0} stacks[12]: ",
    "colour": "\x1b[36mgpu{0}:\x1b[0m ",
    "loguru": "2024-05-01 10:00:00.123 | ERROR    | trainer.hang:dump:88 - [rank {0}] ",
    "hydra": "[rank{0}]: [2024-05-01 10:00:00,123][trainer.hang][ERROR] - ",
    "logging": "gpu{0}: 2024-05-01 10:00:00,123 - trainer.hang - ERROR - ",
    "basic logging": "[{0}] ERROR:trainer.hang:",
}


COMMANDS = {
    "kubectl": "+ kubectl exec train-worker-{0} -c pytorch -- py-spy dump --pid 17",
    "kubectl of a namespace": "$ kubectl -n ml exec -it train-worker-{0} -- sh -c 'py-spy dump --pid $(pgrep python)'",
    "oc": "++ oc exec pod/train-worker-{0} -- pystack remote 17",
    "docker": "+ docker exec -i trainer_{0} py-spy dump --pid 17",
    "ssh": "+ ssh -o StrictHostKeyChecking=no root@gpu-{0} sudo py-spy dump --pid 17",
    "kubectl, the namespace behind exec": "+ kubectl exec -n ml -c pytorch train-worker-{0} -- py-spy dump --pid 17",
    "docker, as a user": "+ docker exec -u root -w /job trainer_{0} py-spy dump --pid 17",
    "ssh to a port through another host": "+ ssh -q -J login -p 2222 gpu-{0} sudo py-spy dump --pid 17",
    "srun": "+ srun --overlap --jobid 4711 -w gpu-{0} py-spy dump --pid 17",
    "a prompt": "root@train-worker-{0}:/workspace# py-spy dump --pid 17",
    "a prompt in brackets": "[me@gpu-{0} job]$ sudo /opt/bin/py-spy dump --pid 17",
}
NO_COMMANDS = (
    "+ kubectl get pods",
    "$ python train.py --pid 3",
    "me@login:~$ ls -l",
    "# ssh gpu-7 uptime",
    "+ x",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_the_shell_repeats_begins_another_process(name: str, tmp_path: Path) -> None:
    """All have one pid, each in its own pod or node. Lines of other commands begin nothing."""
    parts = [
        "\n".join((NO_COMMANDS[rank], COMMANDS[name].format(rank), dump(17, BARRIER if rank == 2 else ALL_REDUCE)))
        for rank in range(4)
    ]  # fmt: skip
    report = judge(read_evidence(folder(tmp_path, all="\n".join(parts)))).report

    assert [one.rank for one in report.diagnosis.culprits] == [2], report.diagnosis.summary
    assert len(report.ranks) == 4


def test_the_debug_servers_of_pytorch_print_all_ranks_with_one_heading_each(tmp_path: Path) -> None:
    """The threads of ranks may have the same addresses; a rank that could not be asked has no dump."""
    frames = {False: ALL_REDUCE, True: BARRIER}
    thread = "Current thread 0x00007fdfa2784640 (most recent call first):\n  <no Python frame>\n\nThread 0x00007fe081a22740 (most recent call first):"
    texts = []
    for rank in range(4):
        lines = [f'  File "/job/{one.split("(")[1][:-1].split(":")[0]}", line {one.split(":")[1][:-1]} in {one.split(" ")[0]}' for one in frames[rank == 2]]  # fmt: skip
        texts.append("\n".join((f"=== Rank {rank}: http://n1:4215{rank}/handler/dump_traceback? ===", thread, *lines, "")))  # fmt: skip
    report = judge(read_evidence(folder(tmp_path, stacks_1="\n".join(texts)))).report

    assert [one.rank for one in report.diagnosis.culprits] == [2], report.diagnosis.summary
    assert len(report.ranks) == 4


def test_ranks_with_one_pid_each_below_its_own_heading_are_no_dumps_of_one(tmp_path: Path) -> None:
    """Containers of one file all have their rank in pid 17; below one heading it is the same process again."""
    texts = [f"=== Rank {rank}: http://h{rank}:5000/handler/pyspy_dump? ===\n{dump(17, BARRIER if rank == 2 else ALL_REDUCE)}" for rank in range(4)]  # fmt: skip
    found = judge(read_evidence(folder(tmp_path, all="\n".join((*texts, texts[3]))))).report

    assert [one.rank for one in found.ranks] == [0, 1, 2, 3]
    assert [one.rank for one in found.diagnosis.culprits] == [2]


@pytest.mark.parametrize(
    "heading",
    ["===== rank {} (host gpu-1) =====", "### Rank {} (local 3, pid 17) ###", "[rank {}] gpu-1", "--- RANK: {} ---", "rank={} (node=gpu-1)"],
)  # fmt: skip
def test_a_heading_may_say_more_than_the_rank(heading: str, tmp_path: Path) -> None:
    """Every host has the same pids: without the headings the dumps of one pid would be those of one process."""
    texts = [f"{heading.format(rank)}\n{dump(17 + rank % 2, BARRIER if rank == 2 else ALL_REDUCE)}" for rank in range(4)]  # fmt: skip
    found = judge(read_evidence(folder(tmp_path, all="\n".join(texts)))).report

    assert [one.rank for one in found.ranks] == [0, 1, 2, 3]
    assert [one.rank for one in found.diagnosis.culprits] == [2]
    assert found.gaps == ()


def test_eu_stack_begins_with_the_main_thread(tmp_path: Path) -> None:
    def text(pid: int, *frames: str) -> str:
        lines = [f"#{n}  0x00007f12a3b4c{n:03d} {one}" for n, one in enumerate(frames)]
        return "\n".join((f"PID {pid} - process", f"TID {pid}:", *lines, f"TID {pid + 9}:", "#0  0x00007f0000000001 __poll", "#1  0x00007f0000000002 ncclSocketPoll", ""))  # fmt: skip

    waits = (
        "sched_yield",
        "cuStreamSynchronize",
        "THPVariable_item",
        "_PyEval_EvalFrameDefault",
        "main",
    )
    writes = ("fsync", "os_fsync", "_PyEval_EvalFrameDefault", "main")
    folder(
        tmp_path,
        **{f"rank{n}": text(100 + 20 * n, *(writes if n == 3 else waits)) for n in range(4)},
    )
    report = judge(read_evidence(tmp_path)).report

    assert [one.rank for one in report.diagnosis.culprits] == [3], report.diagnosis.summary


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize("cut", [False, True])
def test_what_stands_before_a_line_is_taken_off(name: str, cut: bool, tmp_path: Path) -> None:
    """Lines of four ranks, mixed. `cut`: blanks at the end of lines are gone, as editors do."""
    texts = [
        [PREFIXES[name].format(rank) + line for line in dump(70 + rank, BARRIER if rank == 2 else ALL_REDUCE).split("\n")]
        for rank in range(4)
    ]  # fmt: skip
    lines = mixed(texts)
    folder(tmp_path, all="\n".join(line.rstrip() if cut else line for line in lines))
    report = judge(read_evidence(tmp_path)).report

    assert [one.rank for one in report.diagnosis.culprits] == [2], report.diagnosis.summary
    assert [one.pid for one in report.ranks] == [70, 71, 72, 73]
    assert report.gaps == ()


FORMS = ("austin-where", "profiling-sampling-dump", "dataloader-no-numbers", "pytest-timeout", "bt-without-heading", "zero3-backward-thread")  # fmt: skip


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_behind_what_stands_before_a_line(form: str, name: str) -> None:
    text = min((POSTED / form).iterdir()).read_text()
    behind = "\n".join(PREFIXES[name].format(3) + line for line in text.split("\n"))
    found, plain = (
        [
            (one.name, len(one.frames))
            for process in read_text(each).processes
            for one in process.stacks
        ]
        for each in (behind, text)
    )
    assert found == plain != []


def test_a_log_that_numbers_its_lines_is_no_backtrace() -> None:
    assert read_text("#0 building with default (docker driver)\n#0 0.312 Get:1 http://deb\n").processes == ()  # fmt: skip


def mixed(texts: list[list[str]]) -> list[str]:
    chance, left, lines = random.Random(4), [list(text) for text in texts], []
    while any(left):
        one = chance.choice([text for text in left if text])
        lines.append(one.pop(0))
    return lines


NATIVE = ("0x7f15 (libc.so.6)", "cuStreamSynchronize (libcuda.so.535.54)", *ALL_REDUCE)
WRITTEN = {
    "as it is": lambda text: text,
    "of Windows": lambda text: text.replace("\n", "\r\n"),
    "with blanks behind": lambda text: text.replace("\n", "   \n"),
    "with tabs": lambda text: text.replace("    ", "\t"),
    "deeper": lambda text: text.replace("\n", "\n    "),
    "without indentation": lambda text: "\n".join(line.strip() for line in text.split("\n")),
    "behind mpirun": lambda text: "\n".join(f"[1,0]<stderr>:{line}" for line in text.split("\n")),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_blanks_are_nothing_to_rely_on(name: str) -> None:
    (process,) = read_text(WRITTEN[name](dump(7, NATIVE))).processes
    assert [frame.label for frame in process.stacks[0].frames] == list(NATIVE)
    assert read_text(WRITTEN[name](dump(7, NATIVE))).unread == 0


def test_a_dump_without_a_process_line_behind_another_is_a_process(tmp_path: Path) -> None:
    launcher = dump(9, ("_invoke_run (torch/distributed/elastic/agent/server/api.py:9)",), "torchrun t.py")  # fmt: skip
    pasted = dump(7, ALL_REDUCE).partition("\n\n")[2].replace("Thread 7", "Thread 0x7F81445A8440")
    folder(tmp_path, rank0=launcher + pasted, rank1=launcher + pasted)
    assert numbers(tmp_path) == {0: 0, 1: 0}


def test_dumps_of_one_address_alone_may_be_of_one_process_or_of_several(tmp_path: Path) -> None:
    one = 'Timeout (0:10:00)!\nThread 0x00007ff406132180 (most recent call first):\n  File "/job/t.py", line {} in main\n'
    folder(tmp_path, log=one.format(3) + one.format(4))
    with pytest.raises(EvidenceError, match="2 dumps of threads of the same address"):
        captures_from_dumps(tmp_path)
    (tmp_path / "log.txt").rename(tmp_path / "rank0.txt")
    folder(tmp_path, rank1=one.format(3))
    assert numbers(tmp_path) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    "line",
    [
        "Error: Failed to open process 4711 - check if it is running.",
        "step 4 | loss 2.1 | lr 3e-4",
        "INFO:root:Process group ready",
        "2026-11-26 04:45:42 rank 3: saved",
        "Thread pool of 8",
        'File "train.py" was not found',
    ],
)
def test_lines_of_a_log_are_no_stacks(line: str) -> None:
    assert not is_stack_line(line)
    assert read_text(line).processes == ()
    assert read_text(line).unread == 1


# --- which rank ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number", "says"),
    [
        ("rank3.txt", 3, "rank"),
        ("pyspy_rank_12.json", 12, "rank"),
        ("stack-global_rank=7.log", 7, "rank"),
        ("node17.txt", 17, "node"),
        ("trace-3.out", 3, ""),
        ("dump.txt", -1, ""),
        ("crankshaft3", 3, ""),
        ("rank9_local_rank1.txt", 9, "rank"),
        ("local_rank1_of_rank9.txt", 9, "rank"),
        ("gpu-node-2_local_rank_1.txt", 1, ""),
        ("10-0-0-3_lr1.txt", 1, ""),
        ("lr_3e-4_rank7.txt", 7, "rank"),
        ("run-lr0.001_7.txt", 7, ""),
        ("lr1_7.txt", 7, ""),
        ("node3_lr3e-4.txt", 3, "node"),
    ],
)
def test_the_number_in_a_name(name: str, number: int, says: str) -> None:
    assert place_of(name)[1:] == (number, says)


def test_files_by_rank(tmp_path: Path) -> None:
    folder(tmp_path, rank1=dump(5, ALL_REDUCE), rank0=dump(9, ALL_REDUCE))
    assert numbers(tmp_path) == {0: 9, 1: 5}


def test_variables_go_before_the_name_of_the_file(tmp_path: Path) -> None:
    for name, rank in (("a0", 1), ("a1", 0)):
        folder(tmp_path, **{name: f"RANK={rank}\n{dump(50 + rank, ALL_REDUCE)}"})
    assert numbers(tmp_path) == {0: 50, 1: 51}


def test_a_rank_that_two_claim_is_nobodys(tmp_path: Path) -> None:
    folder(tmp_path, a="RANK=3\n" + dump(7, ALL_REDUCE) + "RANK=3\n" + dump(8, ALL_REDUCE))
    (capture,) = captures_from_dumps(tmp_path)
    assert [rank.identity.rank for rank in capture.ranks] == [0, 1]
    assert [remark.kind for remark in capture.remarks] == ["rank_order"]


def test_local_ranks_count_from_the_first_of_the_node(tmp_path: Path) -> None:
    for node in "ab":
        texts = [dump(90 - local, ALL_REDUCE, f"python t.py --local-rank={local}") for local in range(4)]  # fmt: skip
        folder(tmp_path, **{f"host-{node}": "\n".join(texts)})
    assert numbers(tmp_path) == {0: 90, 1: 89, 2: 88, 3: 87, 4: 90, 5: 89, 6: 88, 7: 87}


def test_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for node in (9, 10, 11):
        folder(tmp_path, **{f"node{node}": dump(100 + node, ALL_REDUCE)})
    assert numbers(tmp_path) == {0: 109, 1: 110, 2: 111}


def test_how_they_were_numbered_is_said_and_lowers_the_confidence(tmp_path: Path) -> None:
    folder(tmp_path, a="\n".join(dump(70 + r, BARRIER if r == 2 else ALL_REDUCE) for r in range(4)))
    report = judge(read_evidence(tmp_path)).report
    assert report.diagnosis.confidence == "low"
    assert any("do not say which rank is which" in remark for remark in report.remarks)


def test_a_job_of_more_ranks_than_were_dumped(tmp_path: Path) -> None:
    launcher = dump(1, ("_invoke_run (torch/distributed/elastic/agent/server/api.py:9)",), "torchrun --nnodes=2 --nproc-per-node=2 t.py")  # fmt: skip
    texts = (launcher, dump(5, ALL_REDUCE, "python t.py"), dump(6, ALL_REDUCE, "python t.py"))
    folder(tmp_path, node0="\n".join(texts))
    summary = judge(read_evidence(tmp_path)).report.diagnosis.summary
    assert summary.startswith("2 of the 4 ranks have no dump: look for them first; ")


# --- kinds of processes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "frames", "kind"),
    [
        ("torchrun train.py", ("_poll (x.py:1)",), ProcessKind.LAUNCHER),
        ("/usr/bin/python3 /usr/bin/torchrun --nproc_per_node 4 train.py", ("main (torchrun:10)",), ProcessKind.LAUNCHER),
        ("python -m torch.distributed.run train.py", ("x (y.py:1)",), ProcessKind.LAUNCHER),
        ("python /opt/bin/accelerate launch train.py", ("wait (subprocess.py:9)",), ProcessKind.LAUNCHER),
        ("python train.py --launcher torchrun", ("x (train.py:1)",), ProcessKind.RANK),
        ("python train.py", ("wrapper (torch/distributed/elastic/multiprocessing/errors/__init__.py:355)", "<module> (train.py:9)"), ProcessKind.RANK),
        ("python train.py", ("read (data.py:1)", "_worker_loop (torch/utils/data/_utils/worker.py:3)"), ProcessKind.WORKER),
        ("python -c from multiprocessing.resource_tracker import main;main(6)", ("x (y.py:1)",), ProcessKind.WORKER),
        ("python /opt/wandb/sdk/service", ("x (y.py:1)",), ProcessKind.HELPER),
        ("", ALL_REDUCE, ProcessKind.RANK),
    ],
)  # fmt: skip
def test_what_a_process_is(command: str, frames: tuple[str, ...], kind: ProcessKind) -> None:
    (process,) = read_text(dump(7, frames, command)).processes
    assert kind_of(process) is kind
    assert kind_of(ProcessText(command="")) is ProcessKind.RANK


def test_a_forked_worker_is_not_taken_for_where_its_parent_stood(tmp_path: Path) -> None:
    child = ("flush (writer.py:3)", "_bootstrap (multiprocessing/process.py:314)", *ALL_REDUCE)
    folder(tmp_path, rank0=dump(7, ALL_REDUCE) + dump(8, child), rank1=dump(9, ALL_REDUCE))
    (capture,) = captures_from_dumps(tmp_path)
    assert [[child.pid for child in rank.children] for rank in capture.ranks] == [[8], []]


def test_launchers_alone_are_refused(tmp_path: Path) -> None:
    folder(tmp_path, rank0=dump(7, ("main (torchrun:10)",), "torchrun t.py"))
    with pytest.raises(EvidenceError, match="only launchers and workers"):
        captures_from_dumps(tmp_path)


# --- what was not read -----------------------------------------------------------------------------


def test_what_was_not_read_is_one_sentence(tmp_path: Path) -> None:
    folder(
        tmp_path, rank0=dump(7, ALL_REDUCE) + "and then?\n", rank1=dump(8, ALL_REDUCE), notes="a\nb"
    )
    (capture,) = captures_from_dumps(tmp_path)
    (gap,) = capture.gaps
    assert gap.reason == "notes.txt: 2 lines, no stacks in it (it says 'a'); rank0.txt: 1 of 7 lines are of no form that mldebug knows ('and then?')"  # fmt: skip


def test_a_file_alone_is_judged(tmp_path: Path) -> None:
    folder(tmp_path, all=dump(7, ALL_REDUCE) + dump(8, ALL_REDUCE))
    assert len(judge(read_evidence(tmp_path / "all.txt")).report.ranks) == 2


# --- any text --------------------------------------------------------------------------------------


def test_broken_json_takes_no_longer_than_its_lines() -> None:
    assert read_text("[\n" * 20_000).processes == ()


def judged(root: Path) -> None:
    """An answer or a refusal in words; nothing else."""
    try:
        report = judge(read_evidence(root)).report
    except MldebugError:
        return
    assert all(rank.rank >= 0 for rank in report.ranks)
    assert len({rank.rank for rank in report.ranks}) == len(report.ranks)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_no_text_is_an_internal_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Texts of the field cut, mixed, doubled, with bytes of anything in them, under names of any kind."""
    root = tmp_path_factory.mktemp("any")
    names = st.sampled_from(["rank0.txt", "rank1.txt", "node0.out", "7.json", "99999999.txt", "all", "x/y.log", "rank-1.txt"])  # fmt: skip
    for name in data.draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        target = root / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(mutated(data))
    judged(root)


def mutated(data: st.DataObject) -> bytes:
    lines = [line for path in data.draw(st.lists(st.sampled_from(TEXTS), max_size=3)) for line in path.read_bytes().split(b"\n")]  # fmt: skip
    chance = data.draw(st.randoms(use_true_random=False))
    kind = data.draw(st.sampled_from(["as it is", "cut", "shuffled", "doubled", "bytes", "joined"]))
    if kind == "shuffled":
        chance.shuffle(lines)
    if kind == "doubled":
        lines = [line for line in lines for _ in range(chance.randint(0, 2))]
    text = (b"" if kind == "joined" else b"\n").join(lines)
    if kind == "cut":
        start = chance.randint(0, len(text))
        text = text[start : start + chance.randint(0, 4000)]
    if kind == "bytes":
        for _ in range(20):
            at = chance.randint(0, len(text))
            text = text[:at] + data.draw(st.binary(max_size=6)) + text[at + chance.randint(0, 3) :]
    return text


alphabet = st.text(alphabet='Process Thread():0123456789abcfx \n"+gil<>.py\x1b\r#[]{},=|>-', max_size=400)  # fmt: skip


@given(alphabet)
def test_any_text_is_read_without_an_error(text: str) -> None:
    found = read_text(text)
    assert found.unread <= found.lines
    assert all(frame.line >= 0 for one in found.processes for stack in one.stacks for frame in stack.frames)  # fmt: skip


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(["frames", "pid", "name", "line", "stack_traces", "command_line", "x"]), below, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_any_json_is_read_without_an_error(value: object) -> None:
    read_text(json.dumps(value))
    read_text(json.dumps([value], indent=2))


@pytest.mark.parametrize("line", ["9" * 10, "9" * 23, "99999999999999999999999999"])
def test_a_line_number_that_no_file_has_drops_no_frame(tmp_path: Path, line: str) -> None:
    texts = {
        "pyspy": dump(7, (f"slow (train.py:{line})", "step (train.py:88)")),
        "fault": f'Timeout (0:00:05)!\nThread 0x00007f (most recent call first):\n  File "/job/train.py", line {line} in slow\n',
        "stack": f'Traceback for thread 7 (python3) [] (most recent call last):\n    (Python) File "/job/train.py", line {line}, in slow\n',
        "gdb": f'Traceback (most recent call first):\n  File "/job/train.py", line {line}, in slow\n',
    }
    for name, text in texts.items():
        where = tmp_path / f"rank0-{name}.txt"
        where.write_text(text)
        (found,) = captures_from_dumps(where)
        top = found.ranks[0].process.stacks[0].frames[0]

        assert (top.function, top.file, top.line) == ("slow", "train.py", 0), name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (dump(7, ("slow (train.py:9)",)), "does nothing in"),
        (
            'Timeout (0:00:05)!\nThread 0x00007f (most recent call first):\n  File "/job/train.py", line 9 in slow\n',
            "stands in",
        ),
    ],
    ids=["py-spy", "faulthandler"],
)
def test_that_a_rank_does_nothing_is_said_where_its_tool_says_so(
    tmp_path: Path, text: str, words: str
) -> None:
    folder(tmp_path, rank0=dump(1, ALL_REDUCE), rank1=dump(2, ALL_REDUCE), rank2=text)
    found = judge(read_evidence(tmp_path)).report.diagnosis

    assert found.summary.startswith(f"Rank 2 {words} slow (train.py:9)")


# --- stacks of the kernel ----------------------------------------------------------------------------

NFS = ("rpc_wait_bit_killable+0x11/0x60 [sunrpc]", "__rpc_execute+0x10f/0x2e0 [sunrpc]", "nfs4_proc_getattr+0x69/0x100 [nfsv4]", "vfs_statx+0xaa/0x190", "do_syscall_64+0x5b/0x80", "entry_SYSCALL_64_after_hwframe+0x72/0xdc")  # fmt: skip
FUTEX = ("futex_wait_queue+0x68/0x90", "futex_wait+0x177/0x270", "do_futex+0x125/0x190", "do_syscall_64+0x5b/0x80", "entry_SYSCALL_64_after_hwframe+0x72/0xdc")  # fmt: skip


def kernel_text(functions: tuple[str, ...]) -> str:
    return "".join(f"[<0>] {one}\n" for one in functions)


def verdict_of(root: Path) -> tuple[str, list[int], str]:
    found = judge(read_evidence(root)).report.diagnosis
    return str(found.verdict), [one.rank for one in found.culprits], found.summary


@pytest.mark.parametrize("heading", ["", "==> /proc/{}/stack <==", "$ sudo cat /proc/{}/stack", "/proc/{}/task/{}/stack:"])  # fmt: skip
def test_stacks_of_the_kernel_alone_name_who_waits_for_a_filesystem(
    heading: str, tmp_path: Path
) -> None:
    """`cat /proc/PID/stack` of four ranks: one waits for NFS."""
    for rank in range(4):
        text = heading.format(4000 + rank, 4000 + rank) + "\n" + kernel_text(NFS if rank == 2 else FUTEX)  # fmt: skip
        (tmp_path / f"rank{rank}.stack").write_text(text)
    verdict, named, summary = verdict_of(tmp_path)
    assert (verdict, named) == ("rank_blocked_io", [2])
    assert "no dump" not in summary


def test_stacks_of_the_kernel_in_one_text_without_headings_are_one_a_process() -> None:
    arm = ("futex_wait_queue+0x68/0x90", "__arm64_sys_futex+0x12f/0x190", "invoke_syscall+0x74/0x100", "el0_svc_common.constprop.0+0xd0/0x1f0", "do_el0_svc+0x28/0x40", "el0_svc+0x34/0x110", "el0t_64_sync_handler+0x120/0x130", "el0t_64_sync+0x190/0x198")  # fmt: skip
    found = read_text("\n".join(kernel_text(some) for some in (FUTEX, NFS, arm, FUTEX)))
    assert [one.kernel[0] for one in found.processes] == ["futex_wait_queue", "rpc_wait_bit_killable", "futex_wait_queue", "futex_wait_queue"]  # fmt: skip
    assert found.unread == 0


@pytest.mark.parametrize("below", [True, False], ids=["below its dump", "a file beside"])
def test_a_stack_of_the_kernel_completes_the_dump_of_its_process(
    below: bool, tmp_path: Path
) -> None:
    """py-spy shows `open`, the kernel that it is NFS which does not answer."""
    for rank in range(4):
        reads = ("open_shard (data.py:7)", "step (train.py:80)", "<module> (train.py:120)")
        text = dump(4000 + rank, reads if rank == 1 else ALL_REDUCE)
        kernel = kernel_text(NFS if rank == 1 else FUTEX)
        (tmp_path / f"rank{rank}.txt").write_text(text + kernel * below)
        if not below:
            (tmp_path / f"rank{rank}.stack").write_text(kernel)
    verdict, named, summary = verdict_of(tmp_path)
    assert (verdict, named) == ("rank_blocked_io", [1]), summary
    assert "open_shard" in summary
    assert "ranks 0,2-3 wait in all_reduce" in summary


def test_stacks_of_the_kernel_that_are_all_alike_name_nobody(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.stack").write_text(kernel_text(FUTEX))
    assert verdict_of(tmp_path)[:2] == ("unknown", [])


# --- as other tools and tables have it ---------------------------------------------------------------


def faults(frames: tuple[str, ...], form: str = '  File "/job/{0}", line {1}, in {2}') -> list[str]:
    """The frames as faulthandler and tracebacks write them, in this order."""
    parts = [re.fullmatch(r"(\S+) \((.+):(\d+)\)", one) for one in frames]
    return [form.format(one[2], one[3], one[1]) for one in parts if one]


def stands(rank: int) -> tuple[str, ...]:
    return BARRIER if rank == 2 else ALL_REDUCE


def as_stacktracer(rank: int) -> str:
    frames = [line for one in faults(stands(rank)[::-1], 'File: "/job/{0}", line {1}, in {2}') for line in (one, "  step()")]  # fmt: skip
    return "\n".join(("*** STACKTRACE - START ***", "", "# ThreadID: 140735268770816", *frames, "", "*** STACKTRACE - END ***", ""))  # fmt: skip


def below(head: tuple[str, ...]) -> Callable[[int], str]:
    def written(rank: int) -> str:
        frames = [line for one in faults(stands(rank)[::-1]) for line in (one, "    step()")]
        return "\n".join((*head, *frames, ""))

    return written


THREADS: dict[str, Callable[[int], str]] = {
    "stacktracer": as_stacktracer,
    "a name and an id": below(("Thread MainThread (140735268770816):",)),
    "# Thread": below(("# Thread: MainThread(140735268770816)",)),
    "a traceback each": below(("Stack for thread 140735268770816", "Traceback (most recent call last):")),
}  # fmt: skip


@pytest.mark.parametrize("form", THREADS.values(), ids=THREADS)
def test_what_people_print_of_current_frames_is_read(
    form: Callable[[int], str], tmp_path: Path
) -> None:
    """Recipes around `sys._current_frames()`, the outermost frame first."""
    folder(tmp_path, **{f"rank{rank}": form(rank) for rank in range(4)})
    assert verdict_of(tmp_path)[:2] == ("collective_mismatch", [2])


def test_a_traceback_of_an_exception_is_no_stack() -> None:
    """Control: it says where something was raised, not where the rank stands."""
    text = "\n".join(("Traceback (most recent call last):", *faults(ALL_REDUCE[::-1]), "RuntimeError: no"))  # fmt: skip
    assert read_text(text).processes == ()


TABLES: dict[str, Callable[[list[tuple[int, str]]], str]] = {
    "a list": lambda some: json.dumps([{"rank": rank, "host": "a", "stack": text} for rank, text in some]),
    "lines": lambda some: "\n".join(json.dumps({"rank": str(rank), "pid": 17, "stacktrace": text}) for rank, text in some),
    "by rank": lambda some: json.dumps({f"rank_{rank}": text for rank, text in some}, indent=1),
    "by number, deeper": lambda some: json.dumps({"job": "x", "dumps": {str(rank): {"pyspy": text} for rank, text in some}}),
    "by host": lambda some: json.dumps({"nodes": [{"hostname": f"gpu-{rank}", "processes": [{"pid": 17, "dump": text}]} for rank, text in some]}),
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_texts_of_stacks_inside_json_are_those_of_their_ranks(
    table: Callable[[list[tuple[int, str]]], str], tmp_path: Path
) -> None:
    """As tools of clusters keep them: every container has its rank in pid 17."""
    (tmp_path / "stacks.json").write_text(table([(rank, dump(17, stands(rank))) for rank in range(4)]))  # fmt: skip
    assert len(captures_from_dumps(tmp_path)[0].ranks) in (1, 4)
    assert verdict_of(tmp_path)[:2] == ("collective_mismatch", [2])


def test_pids_as_keys_are_no_ranks(tmp_path: Path) -> None:
    table = {str(4711 + rank): dump(4711 + rank, stands(rank)) for rank in range(4)}
    (tmp_path / "stacks.json").write_text(json.dumps(table))
    assert list(numbers(tmp_path).values()) == [4711, 4712, 4713, 4714]
    assert list(numbers(tmp_path)) == [0, 1, 2, 3]


BESIDE: dict[str, Callable[[list[tuple[int, str]]], object]] = {
    "JAX calls its rank that, all others a pid": lambda some: [{"process_id": 4711 + rank, "rank": rank, "stack": text} for rank, text in some],
    "a pid alone": lambda some: [{"process_id": 4711 + rank, "stack": text.replace("17", str(4711 + rank))} for rank, text in some],
    "small pids of a container": lambda some: {str(7 + rank): text.replace("17", str(7 + rank)) for rank, text in some},
    "by host, then by local rank": lambda some: {f"gpu-node-{one}": {str(rank % 2): text for rank, text in some if rank // 2 == one} for one in range(2)},
    "by host, then by a local rank that is called one": lambda some: {f"10.0.0.{one}": {f"rank_{rank % 2}": text for rank, text in some if rank // 2 == one} for one in range(2)},
    "several dumps of each": lambda some: [{"rank": rank, "dumps": {"1": dump(17, BARRIER), "2": text}} for rank, text in some],
    "two looks": lambda some: {look: {f"rank_{rank}": text for rank, text in some} for look in ("first", "second")},
    "two numbered looks": lambda some: {f"attempt_{look}": {str(rank): text for rank, text in some} for look in range(2)},
}  # fmt: skip


@pytest.mark.parametrize("table", BESIDE.values(), ids=BESIDE)
def test_other_numbers_in_json_are_no_ranks(
    table: Callable[[list[tuple[int, str]]], object], tmp_path: Path
) -> None:
    """Pids, local ranks and numbers of dumps; the same keys of several looks are no hosts."""
    some = [(rank, dump(17, stands(rank))) for rank in range(4)]
    (tmp_path / "stacks.json").write_text(json.dumps(table(some)))
    assert sorted(numbers(tmp_path)) == [0, 1, 2, 3]
    assert verdict_of(tmp_path)[:2] == ("collective_mismatch", [2])


@pytest.mark.parametrize("text", ["{", "[[[", '{"a": "x\\ny\\nz"}', '[1, null, "a"]', '{"rank": "x", "stack": 3}', "[" * 5000])  # fmt: skip
def test_json_without_stacks_stays_what_it_is(text: str) -> None:
    assert texts_inside(text, is_stack_line) == text


ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "PowerShell": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "big endian": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "HTML": lambda text: html.escape(text).encode(),
    "a word processor": lambda text: text.replace('"MainThread"', "\u201cMainThread\u201d").encode(),
}  # fmt: skip


@pytest.mark.parametrize("written", ENCODINGS.values(), ids=ENCODINGS)
def test_other_encodings_are_read(written: Callable[[str], bytes], tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_bytes(written(dump(17, stands(rank))))
    assert verdict_of(tmp_path)[:2] == ("collective_mismatch", [2])


@pytest.mark.parametrize("path", ["none_8f2x/attempt_0/{0}/stderr.log", "node{1}/none_8f2x/attempt_0/{2}/stderr.log", "10-0-0-{1}_lr{2}.txt", "gpu-node-{1}_local_rank_{2}.txt"])  # fmt: skip
def test_ranks_of_several_nodes_are_told_apart_by_their_files(path: str, tmp_path: Path) -> None:
    """torchrun's folder of logs, and local ranks beside hosts: the same pids on each node."""
    for rank in range(4):
        file = tmp_path / path.format(rank, 3 + rank // 2, rank % 2)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dump(17 + rank % 2, stands(rank)))
    assert verdict_of(tmp_path)[:2] == ("collective_mismatch", [2])
    assert sum(len(one.ranks) for one in captures_from_dumps(tmp_path)) == 4


@pytest.mark.parametrize("name", ["lr_3e-4_rank{0}.txt", "lr1_{0}.txt", "lr1_run_{1}.txt"])
def test_a_learning_rate_in_the_names_is_no_local_rank(name: str, tmp_path: Path) -> None:
    """In containers all have one pid: they were read as one rank."""
    for rank in range(4):
        (tmp_path / name.format(rank, "abcd"[rank])).write_text(dump(17, stands(rank)))
    assert sorted(numbers(tmp_path)) == [0, 1, 2, 3]
    assert verdict_of(tmp_path)[:2] == ("collective_mismatch", [2])


def test_only_one_of_two_files_of_a_rank_names_its_host(tmp_path: Path) -> None:
    for rank in range(4):
        text = dump(17, stands(rank))
        (tmp_path / f"rank{rank}_node{rank // 2}.txt").write_text(text)
        (tmp_path / f"rank{rank}_native.txt").write_text(text)
    assert sorted(numbers(tmp_path)) == [0, 1, 2, 3]
    assert verdict_of(tmp_path)[:2] == ("collective_mismatch", [2])


def test_a_native_dump_beside_a_plain_one_is_of_one_rank(tmp_path: Path) -> None:
    """Control: two files of one rank on one host."""
    for rank in range(4):
        text = dump(17 + rank, stands(rank))
        (tmp_path / f"node0_rank{rank}.txt").write_text(text)
        (tmp_path / f"node0_rank{rank}_again.txt").write_text(text)
    assert sum(len(one.ranks) for one in captures_from_dumps(tmp_path)) == 4
