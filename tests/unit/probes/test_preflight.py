"""Whether a job may start: what each node found, what differs between nodes, and since the last good run."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from click.testing import CliRunner

from mldebug.config.schema import Config
from mldebug.jobs.run_records.model import RunRecord, StoredRecord
from mldebug.probes.checks import NodeCheck
from mldebug.probes.last_good_run import changes_since
from mldebug.probes.preflight.findings import (
    MOST_NOTES,
    CheckedNode,
    FolderSpace,
    NodeFindings,
    Preflight,
    folder_checks,
    judge,
    shm_check,
    words,
)
from mldebug_agents.cli.commands.probes import preflight
from mldebug_agents.cluster.fanout.messages import FanoutRequest
from mldebug_agents.cluster.node_findings import ArrivalTimes, NodesChecked
from mldebug_agents.storage.child.client import MountClient

GB = 10**9


def node(name: str, *, clock: float = 102.0, **more: object) -> CheckedNode:
    base = NodeFindings(
        node=name,
        checks=(NodeCheck(stage="shm", state="fine", sentence="/dev/shm has 1 TiB left"),),
        facts={"driver": "570.1", "GPUs": "8 x H100", "kernel": "6.8"},
        packages={"torch": "2.8.0", "python": "3.11.2", "numpy": "2.1.0"},
        environment={"NCCL_ALGO": "Ring"},
        clock=clock,
        seconds=2.0,
    )
    return CheckedNode(findings=msgspec.structs.replace(base, **more), sent=102.0, came=102.1)


NODES = tuple(node(f"n{number}") for number in range(1, 9))


def failed(found: Preflight) -> list[str]:
    return [words(one) for one in found.findings if one.level == "failed"]


def notes(found: Preflight) -> list[str]:
    return [words(one) for one in found.findings if one.level == "note"]


def test_nodes_that_are_alike_and_well_may_start() -> None:
    found = judge(NODES, {})
    assert (found.go, found.verdict, found.findings) == (True, "go: 8 nodes checked", ())
    assert found.nodes == "n[1-8]"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"packages": {"torch": "2.9.1", "python": "3.11.2", "numpy": "2.1.0"}}, "torch: 2.8.0 on n[1-8], 2.9.1 on n9"),
        ({"packages": {"torch": "2.8.0", "python": "3.12.1", "numpy": "2.1.0"}}, "python: 3.11.2 on n[1-8], 3.12.1 on n9"),
        ({"facts": {"driver": "580.2", "GPUs": "8 x H100", "kernel": "6.8"}}, "driver: 570.1 on n[1-8], 580.2 on n9"),
        ({"facts": {"driver": "570.1", "GPUs": "7 x H100", "kernel": "6.8"}}, "GPUs: 8 x H100 on n[1-8], 7 x H100 on n9"),
    ],
)  # fmt: skip
def test_what_must_be_the_same_stops_the_job(change: dict[str, object], sentence: str) -> None:
    found = judge((*NODES, node("n9", **change)), {})
    assert failed(found) == [f"not the same on all nodes: {sentence}"]
    assert not found.go


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"packages": {"torch": "2.8.0", "python": "3.11.2", "numpy": "2.2.0"}}, "numpy: 2.1.0 on n[1-8], 2.2.0 on n9"),
        ({"environment": {"NCCL_ALGO": "Tree"}}, "NCCL_ALGO: Ring on n[1-8], Tree on n9"),
        ({"environment": {"NCCL_ALGO": "Ring", "NCCL_X": "1"}}, "NCCL_X: not set on n[1-8], 1 on n9"),
        ({"facts": {"driver": "570.1", "GPUs": "8 x H100", "kernel": "6.9"}}, "kernel: 6.8 on n[1-8], 6.9 on n9"),
    ],
)  # fmt: skip
def test_other_differences_are_told_and_stop_nothing(
    change: dict[str, object], sentence: str
) -> None:
    found = judge((*NODES, node("n9", **change)), {})
    assert (found.go, failed(found)) == (True, [])
    assert notes(found) == [f"differs between nodes: {sentence}"]


def test_what_a_node_could_not_read_is_no_difference() -> None:
    assert judge((*NODES, node("n9", packages={}, environment={}, facts={})), {}).findings == ()


def test_a_silent_node_and_the_same_failure_of_many_nodes() -> None:
    full = NodeCheck(stage="folder", state="failed", sentence="/data is read-only")
    sick = tuple(node(name, checks=(full,)) for name in ("n4", "n5", "n6"))
    found = judge((*NODES[:3], *sick), {"n7": "Connection refused"})
    assert failed(found) == ["n7: did not answer: Connection refused", "n[4-6]: /data is read-only"]
    assert found.verdict == "no go: n7: did not answer: Connection refused (+1 more)"
    assert found.nodes == "n[1-7]"


@pytest.mark.parametrize(
    ("clock", "sentence"),
    [(102.0, ""), (102.9, ""), (101.2, ""), (110.0, "n9: its clock is 8 s or more ahead"), (90.0, "n9: its clock is 12 s or more behind")],
)  # fmt: skip
def test_a_clock_that_cannot_be_right_is_told(clock: float, sentence: str) -> None:
    found = judge((*NODES, node("n9", clock=clock)), {})
    assert notes(found) == ([sentence] if sentence else [])
    assert found.go


def since(good: RunRecord, one: CheckedNode) -> CheckedNode:
    """The answer of a node where this run has ended well."""
    found = msgspec.structs.replace(one.findings, since_good=changes_since(good, one.findings))
    return msgspec.structs.replace(one, findings=found)


def test_what_changed_on_one_node_is_told_with_it_and_what_changed_on_all_once() -> None:
    good = RunRecord(run="r1", packages={"torch": "2.8.0", "numpy": "2.0.0"}, environment={"NCCL_ALGO": "Ring"})  # fmt: skip
    other = msgspec.structs.replace(good, packages={"torch": "2.8.0", "numpy": "2.1.0"}, environment={"NCCL_ALGO": "Tree"})  # fmt: skip
    found = judge([since(good, NODES[0]), since(good, NODES[1]), since(other, NODES[2])], {})
    assert notes(found) == [
        "n[1-2]: since the last good run r1: numpy was 2.0.0, is 2.1.0",
        "n3: since the last good run r1: NCCL_ALGO was Tree, is Ring",
    ]
    assert notes(judge([since(good, one) for one in NODES], {})) == ["since the last good run r1: numpy was 2.0.0, is 2.1.0"]  # fmt: skip


def test_what_has_changed_since_the_last_good_run() -> None:
    good = RunRecord(
        run="r1",
        packages={"torch": "2.8.0", "python": "3.11.2", "numpy": "2.0.0"},
        environment={"NCCL_ALGO": "Ring", "NCCL_OLD": "1"},
        machine={"driver": "560.1", "cores": "8"},
    )
    found = judge([since(good, NODES[0])], {})
    assert found.go
    assert notes(found) == [
        "since the last good run r1: driver was 560.1, is 570.1",
        "since the last good run r1: numpy was 2.0.0, is 2.1.0",
        "since the last good run r1: NCCL_OLD was 1, is not set",
    ]
    assert notes(judge([since(RunRecord(run="r1"), NODES[0])], {})) == []


@pytest.mark.parametrize(
    ("table", "was", "now"),
    [
        ("packages", {"python": "3.11"}, {"python": "3.11.2"}),
        ("packages", {"torch": "2.8.0+cu128"}, {"torch": "2.8.0"}),
        ("packages", {"torch": "2.8.0", "nccl": "2.27.3"}, {"torch": "2.8.0"}),
        ("packages", {"torch": "2.8.0"}, {"torch": "2.8.0", "debian-thing": "1"}),
        ("packages", {"torch": "2.8.0", "numpy": "2.0"}, {"pip": "25"}),
        ("environment", {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"}, {"NCCL_ALGO": "Ring"}),
    ],
)  # fmt: skip
def test_what_a_run_and_a_check_read_in_two_ways_has_not_changed(
    table: str, was: dict[str, str], now: dict[str, str]
) -> None:
    good = msgspec.structs.replace(RunRecord(run="r1"), **{table: was})
    assert notes(judge([since(good, node("n1", **{table: now}))], {})) == []


@pytest.mark.parametrize(
    ("was", "now", "sentence"),
    [
        ({"python": "3.1"}, {"python": "3.11.2"}, "python was 3.1, is 3.11.2"),
        ({"torch": "2.8.0+cu128"}, {"torch": "2.8.1"}, "torch was 2.8.0+cu128, is 2.8.1"),
        ({"torch": "2.8.0+cu126"}, {"torch": "2.8.0+cu128"}, "torch was 2.8.0+cu126, is 2.8.0+cu128"),
        ({"torch": "2.8.0", "numpy": "2.0"}, {"torch": "2.8.0"}, "numpy was 2.0, is not set"),
    ],
)  # fmt: skip
def test_what_has_changed_in_packages_is_told(
    was: dict[str, str], now: dict[str, str], sentence: str
) -> None:
    good = RunRecord(run="r1", packages=was)
    found = notes(judge([since(good, node("n1", packages=now))], {}))
    assert found == [f"since the last good run r1: {sentence}"]


def test_hundreds_of_differences_are_a_few_lines() -> None:
    many = {f"package{number}": "1" for number in range(500)}
    found = judge((*NODES, node("n9", packages=NODES[0].findings.packages | many)), {})
    assert len(found.findings) == MOST_NOTES + 1
    assert "488 more differences" in found.findings[-1].sentence


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (FolderSpace(path="/d", available=3 * GB), "/d is there and takes writes, 2.79 GiB left"),
        (FolderSpace(path="/d", available=GB), "/d has 954 MiB left, too little for 2 checkpoints of 954 MiB"),
        (FolderSpace(path="/d", available=9 * GB, quota_left=GB), "/d has 954 MiB left of a quota, too little for 2 checkpoints of 954 MiB"),
        (FolderSpace(path="/d", available=9 * GB, inodes_free=3), "/d has 3 inodes left"),
        (FolderSpace(path="/d", stuck=8.0), "/d does not answer: a call there has not come back for 8 s"),
        (FolderSpace(path="/d", wrong="cannot be written: it is read-only"), "/d cannot be written: it is read-only"),
    ],
)  # fmt: skip
def test_a_folder(space: FolderSpace, sentence: str) -> None:
    (check,) = folder_checks([space], GB, 2)
    assert check.sentence == sentence
    assert (check.state == "fine") == ("takes writes" in sentence)


def test_a_used_up_quota_is_told_without_a_size() -> None:
    (check,) = folder_checks([FolderSpace(path="/d", available=9 * GB, quota_left=0)], 0, 2)
    assert (check.state, check.sentence) == ("failed", "/d has nothing left of a quota")


def test_only_the_first_folder_needs_room_for_checkpoints() -> None:
    space = [FolderSpace(path="/a", available=9 * GB), FolderSpace(path="/b", available=1)]
    assert [one.state for one in folder_checks(space, GB, 2)] == ["fine", "fine"]


def test_shm() -> None:
    assert shm_check(64 << 20, 64 << 20).state == "failed"
    assert shm_check(8 << 30, 8 << 30).state == "fine"
    assert shm_check(8 << 30, 1 << 20).state == "failed"
    assert "is not there" in shm_check(0, 0).sentence


def test_when_each_node_had_answered_is_known() -> None:
    calls: list[tuple[int, tuple[str, ...]]] = []
    times = ArrivalTimes(lambda answered, missing: calls.append((answered, missing)))
    times(0, ("a", "b"))
    assert times.came == {}
    times(1, ("b",))
    times(2, ())
    assert list(times.came) == ["a", "b"]
    assert times.began <= times.came["a"] <= times.came["b"]
    assert calls == [(0, ("a", "b")), (1, ("b",)), (2, ())]


# --- the command, on this node ---------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, Preflight]:
    done = CliRunner().invoke(preflight.command, [*arguments, "--json"], standalone_mode=True)
    return done.exit_code, msgspec.json.decode(done.stdout, type=Preflight)


def test_a_node_that_has_what_is_needed(tmp_path: Path) -> None:
    code, found = run("--folder", str(tmp_path), "--checkpoint", "1MiB", "--python", sys.executable)
    (node,) = found.answers
    stages = {one.stage: one.state for one in node.checks}
    assert (stages["folder"], stages["python"]) == ("fine", "fine")
    assert node.packages["click"]
    assert node.packages["python"].startswith("3.")
    assert code == (0 if found.go else 1)
    assert list(tmp_path.iterdir()) == []


def test_paths_are_those_of_the_shell_that_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    _, found = run("--folder", "out", "--python", "bin/python")
    (node,) = found.answers
    stages = {one.stage: (one.state, one.sentence.split()[0]) for one in node.checks}
    assert stages["folder"] == ("fine", str(tmp_path / "out"))
    assert stages["python"][0] == "fine"


@pytest.mark.parametrize("job", ["train.py 4712.0", "train.py", "train.py 4711.0"])
def test_the_last_good_run_is_found_under_srun(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = RunRecord(run="r1", name="train.py 4711.0", script="train.py", outcome=preflight.WELL, is_over=True)  # fmt: skip
    bad = RunRecord(run="r2", name="train.py 4711.0", script="train.py", outcome="exit code 1", started_at=9.0)  # fmt: skip
    other = RunRecord(run="r3", name="eval.py 4712.0", script="eval.py", outcome=preflight.WELL, started_at=9.0)  # fmt: skip
    records = {one.run: one for one in (good, bad, other)}
    near = SimpleNamespace(answer=SimpleNamespace(snapshot=1), state_dir=Path("/none"))
    monkeypatch.setattr(preflight, "ask_nearest", lambda _: near)
    monkeypatch.setattr(preflight, "recorded_runs", lambda _: [StoredRecord.of(one).summary for one in records.values()])  # fmt: skip
    monkeypatch.setattr(preflight, "record_of_run", lambda _, run: records[run])
    assert preflight._last_good(Config(), job) == (good, "")
    assert preflight._last_good(Config(), "nobody.py") == (None, "no run of nobody.py that ended well is recorded here")  # fmt: skip


def test_other_nodes_are_asked_for_the_same_in_words_that_they_understand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--folder", str(tmp_path), "--checkpoint", "60MiB", "--gpus", "0", "--ib", "8x400", "--python", "python3", "--job", "train.py", "--load"]  # fmt: skip
    requests: list[tuple[str, ...]] = []
    wanted: list[object] = []

    def ask(_: object, __: str, request: FanoutRequest, ___: object) -> NodesChecked:
        requests.append(request.arguments)
        return NodesChecked(answers=(), silent={"h1": "gone"})

    monkeypatch.setattr(preflight, "check_nodes", ask)
    monkeypatch.setattr(preflight, "_send", lambda _, one, __: wanted.append(one))
    CliRunner().invoke(preflight.command, [*words, "--hosts", "h1", "--json"])
    done = CliRunner().invoke(preflight.command, list(requests[0][1:]))
    assert done.exit_code == 0, done.output
    CliRunner().invoke(preflight.command, [*words, "--send"])
    assert wanted[0] == wanted[1]
    assert wanted[0].checkpoint == 60 << 20  # type: ignore[attr-defined]


@pytest.mark.parametrize(("more", "name"), [(("--slurm-job", "7"), "a1"), ((), "host")])
def test_a_node_answers_by_the_name_by_which_it_was_asked(
    more: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    monkeypatch.setattr(preflight, "_send", lambda _, __, node: names.append(node))
    monkeypatch.setattr(preflight.socket, "gethostname", lambda: "host")
    monkeypatch.setenv("SLURMD_NODENAME", "a1")
    CliRunner().invoke(preflight.command, ["--send", *more])
    assert names == [name]


def test_a_folder_that_is_named_twice_is_tried_once(tmp_path: Path) -> None:
    _, found = run(*(word for name in ("", "/", "/.") for word in ("--folder", f"{tmp_path}{name}")))  # fmt: skip
    assert [one.state for one in found.answers[0].checks if one.stage == "folder"] == ["fine"]


def test_a_child_that_ends_while_it_looks_at_folders_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        raise ConnectionResetError("it has ended")

    monkeypatch.setattr(MountClient, "ask", ended)
    code, found = run("--folder", str(tmp_path))
    assert code == 1
    assert f"{tmp_path} cannot be written: it could not be asked: it has ended" in "\n".join(failed(found))  # fmt: skip


def test_a_folder_whose_variable_is_not_set_is_a_wrong_call() -> None:
    done = CliRunner().invoke(preflight.command, ["--folder", ""])
    assert "--folder is empty" in str(done.exception)


@pytest.mark.parametrize("option", ["--hosts", "--slurm-job"])
@pytest.mark.parametrize("words", ["", " "])
def test_an_empty_variable_is_not_this_node_alone(option: str, words: str) -> None:
    """`--hosts "$NODES"` said "go: 1 node checked" of the node on which it was typed."""
    done = CliRunner().invoke(preflight.command, [option, words])
    assert done.exit_code != 0
    assert "no nodes are named" in str(done.exception)


def test_a_node_that_lacks_something(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        folder = tmp_path / "no/where"
    else:
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o500)
    code, found = run("--folder", str(folder), "--python", "/bin/false", "--gpus", "1024")
    assert code == 1
    sentences = "\n".join(failed(found))
    assert f"{folder} cannot be written" in sentences
    assert "/bin/false cannot be used: it printed nothing" in sentences
    assert "of 1024 GPUs answer" in sentences


def test_a_python_that_prints_nonsense_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.probes.preflight.node_look.PYTHON_SECONDS", 0.5)
    for number, line in enumerate(("echo mldebug-packages '{\"a'", "sleep 60", "head -c 9000000 /dev/zero")):  # fmt: skip
        python = tmp_path / f"python{number}"
        python.write_text(f"#!/bin/sh\n{line}\n")
        python.chmod(0o755)
        code, found = run("--python", str(python))
        assert code == 1
        assert any(str(python) in one for one in failed(found))
