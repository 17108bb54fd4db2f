"""Last words as people have posted them: who is named, and that what stands before a line never changes it."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.words.recorded.last_attempt import RecordedLog
from mldebug.diagnosis.exits.words.recorded.recorded_logs import end_of_logs
from shared.diagnosis.fieldcases import FIELD, Case, all_cases
from shared.diagnosis.fieldexits import Dress, outcome_of
from shared.diagnosis.lastwords import PLAYS, WORLD, all_last_words, plan_of, verdict_on

EXITS = FIELD / "exits"
CASES: tuple[Case, ...] = next(some.cases for some in all_cases() if some.folder == EXITS)
MIXES = int(os.environ.get("MIXES", "200"))  # that many and more take `MIXES=5000 pytest …`
WORDS = tuple(all_last_words())


def plain(rank: int, line: str) -> str:
    """As the rank writes it."""
    return line


def stamped(rank: int, line: str) -> str:
    """A scheduler's or a logger's time."""
    return f"2026-09-18 19:29:{len(line) % 60:02d},{rank}23 {line}"


def cri(rank: int, line: str) -> str:
    """containerd's log of a pod."""
    return f"2026-09-18T19:29:{len(line) % 60:02d}.123456789Z stderr F {line}"


def kubectl(rank: int, line: str) -> str:
    """`kubectl logs --prefix`."""
    return f"[pod/train-{rank // 2}/pytorch] {line}"


def compose(rank: int, line: str) -> str:
    """`docker compose logs`."""
    return f"worker-{rank // 2}-1  | {line}"


def pdsh(rank: int, line: str) -> str:
    """pdsh, as DeepSpeed starts it."""
    return f"node-7: {line}"


def ray(rank: int, line: str) -> str:
    """What Ray's driver writes before a worker's line."""
    return f"\x1b[36m(RayTrainWorker pid={4711 + rank}, ip=10.0.0.{rank})\x1b[0m {line}"


def coloured(rank: int, line: str) -> str:
    """rich and loguru."""
    return f"\x1b[1;31m{line}\x1b[0m"


def behind_bar(rank: int, line: str) -> str:
    """Rank 0's bar stands in the same line."""
    return f"\rEpoch 0:  50%|#####     | 500/1000 [10:00<10:00,  1.0it/s, loss=2.6]{line}"


def teed(rank: int, line: str) -> str:
    """`torchrun --tee 3`."""
    return f"[default{rank}]:{line}"


def tagged(rank: int, line: str) -> str:
    """`mpirun --tag-output`, with a time."""
    return f"Wed Jun 22 15:48:08 2026[1,{rank}]<stderr>:{line}"


def docker(rank: int, line: str) -> str:
    """Docker's json-file."""
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-09-18T19:29:44Z"})


def kubectl_stamped(rank: int, line: str) -> str:
    """`kubectl logs --prefix --timestamps`."""
    return (
        f"[pod/train-{rank // 2}/pytorch] 2026-09-18T19:29:{len(line) % 60:02d}.123456789Z {line}"
    )


def stern(rank: int, line: str) -> str:
    """stern, with the colours of pod and container."""
    return f"\x1b[36mtrain-{rank // 2}\x1b[0m \x1b[32mpytorch\x1b[0m {line}"


def ray_plain(rank: int, line: str) -> str:
    """Ray's, of a task without a name."""
    return f"(pid={4711 + rank}, ip=10.0.0.{rank}) {line}"


def journal(rank: int, line: str) -> str:
    """journalctl."""
    return f"Sep 18 19:29:{len(line) % 60:02d} node-7 train.sh[{4711 + rank}]: {line}"


def cloudwatch(rank: int, line: str) -> str:
    """`aws logs tail`."""
    return f"2026-09-18T19:29:{len(line) % 60:02d}.123000+00:00 train/algo-{rank // 2} {line}"


def gke(rank: int, line: str) -> str:
    """A line of GKE's logs, as `gcloud logging read --format=json | jq -c '.[]'` gives it."""
    return json.dumps({"insertId": "1x", "logName": "projects/p/logs/stderr", "severity": "ERROR", "textPayload": f"{line}\n", "timestamp": "2026-09-18T19:29:44Z"})  # fmt: skip


def vertex(rank: int, line: str) -> str:
    """The same of Vertex AI."""
    return json.dumps({"insertId": "1x", "jsonPayload": {"attrs": {"tag": "workerpool0-0"}, "levelname": "ERROR", "message": f"{line}\n"}, "timestamp": "2026-09-18T19:29:44Z"})  # fmt: skip


def loki(rank: int, line: str) -> str:
    """`logcli query --output=jsonl`."""
    return json.dumps({"labels": {"pod": f"train-{rank // 2}"}, "line": line, "timestamp": "2026-09-18T19:29:44.123456789Z"})  # fmt: skip


def logcli(rank: int, line: str) -> str:
    """`logcli query`."""
    return f'2026-09-18T19:29:{len(line) % 60:02d}Z {{pod="train-{rank // 2}"}} {line}'


def fluent(rank: int, line: str) -> str:
    """Fluent Bit, in a bucket."""
    return json.dumps({"date": 1789.5, "log": line, "kubernetes": {"pod_name": f"train-{rank // 2}"}, "stream": "stderr"})  # fmt: skip


def events(rank: int, line: str) -> str:
    """A runner that keeps the output of its programs as events."""
    return json.dumps({"event": "line", "data": f"{line}\n", "pipe": "stderr"})


def labelled(rank: int, line: str) -> str:
    """`srun -l`."""
    return f"{rank}: {line}"


def labelled_wide(rank: int, line: str) -> str:
    """`srun -l` of a hundred tasks, with a time of the program's."""
    return f" {rank}: 2026-09-18 19:29:44 {line}"


def tagged_prte(rank: int, line: str) -> str:
    """`mpirun --tag-output` of Open MPI 5."""
    return f"[prterun-n1-4711@1,{rank}]<stderr>: {line}"


def tagged_sagemaker(rank: int, line: str) -> str:
    """mpirun as SageMaker starts it."""
    return f"[1,mpirank:{rank},algo-{rank // 2}]<stderr>:{line}"


def prepended(rank: int, line: str) -> str:
    """`mpiexec -prepend-rank` of Intel MPI."""
    return f"[{rank}] {line}"


def ray_repeated(rank: int, line: str) -> str:
    """Ray's, of a line that several workers wrote."""
    return f"\x1b[36m(TrainWorker pid={4711 + rank})\x1b[0m {line}\x1b[32m [repeated {rank + 2}x across cluster]\x1b[0m"


def cri_zone(rank: int, line: str) -> str:
    """CRI-O's, in parts, with a zone."""
    part = "P" if len(line) % 3 == 0 else "F"
    return f"2026-09-18T19:29:44.123456789+02:00 stdout {part} {line}"


def levelled(rank: int, line: str) -> str:
    """A time by ISO 8601 and a level."""
    return f"[2026-09-18T19:29:44+00:00] [ERROR] {line}"


def journal_precise(rank: int, line: str) -> str:
    """`journalctl -o short-iso-precise`."""
    return f"2026-09-18T19:29:44.123456+0000 node-7 python3[{4711 + rank}]: {line}"


def journal_json(rank: int, line: str) -> str:
    """`journalctl -o json`."""
    return json.dumps({"__REALTIME_TIMESTAMP": "1767225600000000", "_PID": str(4711 + rank), "MESSAGE": line, "PRIORITY": "3"})  # fmt: skip


def determined(rank: int, line: str) -> str:
    """Determined."""
    return f"[2026-09-18T19:29:44.106313Z] fa88a9df || {line}"


def skypilot(rank: int, line: str) -> str:
    """SkyPilot, whose `rank` is a node's."""
    return f"(worker{rank // 2}, rank={rank // 2}, pid={4711 + rank}, ip=10.0.0.{rank // 2}) {line}"


def of_node(rank: int, line: str) -> str:
    """A launcher that writes the number of a node."""
    return f"[node{rank // 2}]: {line}"


def gitlab(rank: int, line: str) -> str:
    """GitLab's runner."""
    return f"2026-09-18T19:29:44.123456Z 01E {line}"


def worker_of_vllm(rank: int, line: str) -> str:
    """vLLM's logger."""
    return f"(Worker_TP{rank} pid={4711 + rank}) ERROR 09-18 19:29:44 [multiproc_executor.py:511] {line}"


def before_bar(rank: int, line: str) -> str:
    """A bar is drawn over the line."""
    return f"{line}\rTraining:  10%|█         | 10/100 [00:10<01:30,  1.00s/it]"


def rich_bar(rank: int, line: str) -> str:
    """A bar of rich in the same line."""
    return f"Epoch 0 ━━━━━━━╸━━━━ 12/100 0:00:12 • 0:01:20 0.9it/s {line}"


TASKS: tuple[tuple[str, Dress], ...] = (
    ("slurm", labelled), ("slurm", labelled_wide), ("openmpi", tagged), ("openmpi", tagged_prte), ("openmpi", tagged_sagemaker), ("mpich", prepended),
)  # fmt: skip
DRESSES: tuple[Dress, ...] = (plain, stamped, cri, kubectl, compose, pdsh, ray, coloured, behind_bar, teed, tagged, docker, kubectl_stamped, stern, ray_plain, journal, cloudwatch, gke, vertex, loki, logcli, fluent, events,
    ray_repeated, cri_zone, levelled, journal_precise, journal_json, determined, skypilot, of_node, gitlab, worker_of_vllm, before_bar, rich_bar)  # fmt: skip


def named(outcome: ExitOutcome) -> tuple[int, ...]:
    """Whom it names, however surely."""
    culprits = outcome.finding.culprits if outcome.finding else ()
    return tuple(sorted(one.rank for one in culprits if one.rank is not None))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dress", DRESSES, ids=lambda dress: dress.__name__)
def test_what_stands_before_a_line_never_changes_the_name(case: Case, dress: Dress) -> None:
    right = named(outcome_of(EXITS / case.input, case.world))
    assert named(outcome_of(EXITS / case.input, case.world, dress)) in (right, ())


def test_mixes_never_change_the_name() -> None:
    """Lines of all ranks in any order, some of them behind one thing, some behind another; each third log is of srun or mpirun."""
    chance = random.Random(2026)
    for number in range(MIXES):
        case = CASES[number % len(CASES)]
        right = named(outcome_of(EXITS / case.input, case.world))
        worn = chance.choices(DRESSES, k=case.world)
        launcher, outer = chance.choice(TASKS) if number % 3 == 0 else ("torchrun", plain)
        dress = _mix(worn, outer, random.Random(number))
        shuffle = random.Random(number) if number % 2 else None
        found = named(outcome_of(EXITS / case.input, case.world, dress, shuffle, launcher))
        names = [one.__name__ for one in (*worn, outer)]
        assert found in (right, (), *(case.named or ())), (number, case.name, names, found)


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
def test_mixes_of_last_words_name_nobody_wrongly(times: int) -> None:
    """The same over every case of last_words, each in a dress and a play of its own; nightly in three."""
    for number, case in enumerate(WORDS * times):
        chance = random.Random(number)
        play = chance.choice(PLAYS)
        launcher, outer = chance.choice(TASKS) if number % 3 == 0 else ("torchrun", plain)
        dress = _mix(chance.choices(DRESSES, k=WORLD), outer, random.Random(number))
        shuffle = chance if play.mixed else None
        outcome = outcome_of(
            plan_of(case, play), WORLD, dress, shuffle, launcher, file_each=play.log == "file"
        )
        assert "wrong" not in verdict_on(case, outcome), (number, case.name, play, outcome.sentence)


@pytest.mark.parametrize("write", ["{}:{}", "[{}] {}", "{:6d}\t{}", "job.log:{}:{}", "{}: {}"])
def test_numbers_of_lines_are_no_ranks(write: str) -> None:
    """`grep -n`, `cat -n`, `less -N`, a page with numbers: what somebody pasted of a log without marks."""
    lines = ["step 7 loss 2.0", "Traceback (most recent call last):", '  File "/job/train.py", line 88, in train_step', "    load(7)", "ValueError: bad shard 7"]  # fmt: skip
    numbered = [write.format(number, line) for number, line in enumerate(lines, 1)]
    end = end_of_logs([RecordedLog(name="job.log", lines=numbered)])
    assert end is None or named(judge_exit(end)) == ()


def _mix(worn: Sequence[Dress], outer: Dress, bars: random.Random) -> Dress:
    """Each rank's own dress, now and then behind a bar, all in the launcher's."""

    def dress(rank: int, line: str) -> str:
        over = behind_bar if bars.random() < 0.1 else plain
        return outer(rank, over(rank, worn[rank](rank, line)))

    return dress


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(("launcher", "dress"), TASKS, ids=lambda one: getattr(one, "__name__", one))  # fmt: skip
def test_the_number_of_a_task_is_its_rank(case: Case, launcher: str, dress: Dress) -> None:
    """With srun and mpirun, which torch's own marks may stand behind; where none does, the name is at least no other."""
    right = named(outcome_of(EXITS / case.input, case.world))
    outcome = outcome_of(EXITS / case.input, case.world, dress, launcher=launcher)
    assert named(outcome) in (right, (), *(case.named or ()))


@pytest.mark.parametrize(("launcher", "dress"), TASKS, ids=lambda one: getattr(one, "__name__", one))  # fmt: skip
@pytest.mark.parametrize("mixed", [False, True])
def test_a_mark_of_a_task_alone_names_its_rank(
    launcher: str, dress: Dress, mixed: bool, tmp_path: Path
) -> None:
    """No line has a mark of torch's: rank 1 fails by itself, rank 0 only loses it."""
    steps = [f"step {number} loss 2.0" for number in range(9)]
    frame = 'Traceback (most recent call last):\n  File "/job/train.py", line 88, in train_step\n    loss.backward()\n'
    words = {
        1: "ValueError: bad shard 7",
        0: "RuntimeError: [gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:26017: Connection reset by peer",
    }
    plan: dict[str, list[Any]] = {str(rank): [*steps, {"sleep": 8}] for rank in range(4)}
    for rank, text in words.items():
        plan[str(rank)] += [frame + text, {"exit": 1}]
    (tmp_path / "it.json").write_text(json.dumps({"ranks": plan}))
    shuffle = random.Random(7) if mixed else None
    outcome = outcome_of(tmp_path / "it.json", 4, dress, shuffle, launcher)
    assert named(outcome) == (1,)
    # a task may be a whole node: then its number is no rank
    assert named(outcome_of(tmp_path / "it.json", 4, dress, shuffle)) in ((), (1,))
