"""The captures of many nodes become one case: whoever is missing, late or lies, no wrong rank is named."""

import itertools
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.cluster.merge import NodeReplies, merge, placed
from mldebug.cluster.wire import NodeReply
from mldebug.core.model import (
    Confidence,
    Fault,
    Judgement,
    ProcessCapture,
    QueriedNode,
    QueriedNodes,
    Verdict,
)
from mldebug.core.report_model import Report, Stall
from mldebug.diagnosis.diagnose import diagnose
from mldebug.incidents.report.build import build_report
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import report_lines
from mldebug.incidents.stored_evidence import load_evidence
from mldebug_agents.incidents.manual import evidence
from shared.cluster.nodes import (
    merged,
    node_capture,
    rank,
    replies,
    run,
    silent,
    sleeper,
    starter,
    waiter,
)
from shared.diagnosis.builders import process, still

OTHER = process(
    "all_gather (torch/distributed/distributed_c10d.py:2800)",
    "wrapper (torch/distributed/c10d_logger.py:83)",
    "sync (train.py:99)",
    move=still(),
)


def judged(*arguments: object, **more: object) -> Judgement:
    found = merged(*arguments, **more)  # type: ignore[arg-type]
    assert len(found.runs) == 1
    return diagnose(*found.runs[0])


def named(judgement: Judgement) -> list[int | None]:
    return [one.rank for one in judgement.diagnosis.culprits]


def report_of(*arguments: object, **more: object) -> Report:
    (one,) = merged(*arguments, **more).runs  # type: ignore[arg-type]
    return build_report(
        diagnose(*one), one.captures, kind="manual", trigger="manual", detected_at=1.7e9,
        reported_at=1.7e9, stall=Stall(timeout_seconds=None, why=""), versions={}, queried=one.queried,
    )  # fmt: skip


# --- one case ------------------------------------------------------------------------------------


def test_the_sleeping_rank_is_named_with_its_host() -> None:
    found = judged(run(4, 2, {5: sleeper()}))

    (culprit,) = found.diagnosis.culprits
    assert (culprit.rank, culprit.node, culprit.pid) == (5, "a3", 1005)
    assert found.diagnosis.verdict is Verdict.RANK_WAITING
    assert found.diagnosis.confidence is Confidence.HIGH
    assert "(on a3)" in found.diagnosis.summary
    assert "ranks 0-4,6-7 wait in all_reduce" in found.diagnosis.summary
    assert "4 of 4 nodes answered" in found.diagnosis.evidence


def test_the_order_of_the_nodes_changes_nothing() -> None:
    captures = run(4, 2, {5: sleeper()})
    expected = merged(captures)
    for order in itertools.permutations(captures):
        assert merged({name: captures[name] for name in order}) == expected


def test_suspects_that_share_a_node_say_so() -> None:
    found = judged(run(4, 2, {4: sleeper(), 5: sleeper()}))

    assert named(found) == [4, 5]
    shared = [one for one in found.diagnosis.evidence if "run on a3" in one]
    assert shared == ["all ranks that do not wait (4-5) run on a3: they are all ranks of it"]


def test_a_report_has_every_node() -> None:
    captures = run(4, 2, {1: sleeper()})
    del captures["a4"]
    report = report_of(captures, silent("a4"))

    assert report.job.nodes == ("a1", "a2", "a3", "a4")
    assert [(one.node, one.ranks, one.state) for one in report.nodes] == [
        ("a1", "0-1", "answered"),
        ("a2", "2-3", "answered"),
        ("a3", "4-5", "answered"),
        ("a4", "", "silent"),
    ]
    assert [one.what for one in report.gaps] == ["the capture of a4"]
    text = "\n".join(report_lines(report))
    page = render_html(report)
    assert "3 of 4 nodes answered" in text
    assert "3 of 4 nodes answered" in page
    assert "silent: No route to host" in page


# --- who does not answer -------------------------------------------------------------------------


def test_a_silent_node_that_all_wait_for_is_named_at_low_confidence() -> None:
    captures = run(3, 2, {5: sleeper()})
    del captures["a3"]
    found = judged(captures, silent("a3"))

    assert found.diagnosis.verdict is Verdict.NODE_UNREACHABLE
    assert [(one.kind, one.rank, one.node) for one in found.diagnosis.culprits] == [
        ("node", None, "a3")
    ]
    assert found.diagnosis.confidence is Confidence.LOW
    assert found.diagnosis.summary.startswith("Node a3 does not answer; ranks 0-3 wait in")


STOPPED = process(state="T", wchan="do_signal_stop")
LOST_GPU = Fault(kind="xid", words="Xid 79", code="xid_79", tier="fatal", node="a1", rank=1, by="gpu", uuid="GPU-1", at=1.7e9 - 100)  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "odd", "faults"),
    [
        (Verdict.GPU_FAULT, {}, (LOST_GPU,)),
        (Verdict.JOB_PAUSED, dict.fromkeys(range(4), STOPPED), ()),
        (Verdict.RANK_STOPPED, {1: STOPPED}, ()),
    ],
)
def test_nothing_is_sure_while_a_node_was_not_seen(
    verdict: Verdict, odd: dict[int, ProcessCapture], faults: tuple[Fault, ...]
) -> None:
    captures = run(3, 2, odd)
    captures["a1"] = msgspec.structs.replace(captures["a1"], faults=faults, quiet_seconds=100.0)
    whole = judged(captures).diagnosis
    del captures["a3"]
    part = judged(captures, silent("a3")).diagnosis

    assert (part.verdict, part.confidence) == (verdict, Confidence.MEDIUM)
    assert verdict is Verdict.JOB_PAUSED or whole.confidence is Confidence.HIGH


def test_a_node_that_slurm_has_given_up_is_better_evidence() -> None:
    captures = run(3, 2)
    del captures["a3"]
    down = [QueriedNode(name="a3", state="down", reason="Slurm says that it is down")]
    assert judged(captures, down).diagnosis.confidence is Confidence.MEDIUM


def test_a_silent_node_explains_nothing_where_something_better_does() -> None:
    captures = run(3, 2, {1: process(state="T", wchan="do_signal_stop")})
    del captures["a3"]
    found = judged(captures, silent("a3"))

    assert found.diagnosis.verdict is Verdict.RANK_STOPPED
    assert named(found) == [1]


def test_ranks_out_of_step_explain_more_than_a_silent_node() -> None:
    captures = run(5, 2, {3: OTHER})
    del captures["a5"]
    found = judged(captures, silent("a5"))

    assert found.diagnosis.verdict is Verdict.COLLECTIVE_MISMATCH
    assert named(found) == [3]
    assert found.diagnosis.confidence is Confidence.LOW


@pytest.mark.parametrize("state", ["unable", "refused"])
def test_of_a_node_that_was_reached_and_could_not_capture_nothing_is_known(state: str) -> None:
    captures = run(3, 2, {5: sleeper()})
    del captures["a3"]
    failed = [QueriedNode(name="a3", state=state, reason="No module named mldebug")]
    found = judged(captures, failed)

    assert found.diagnosis.verdict is Verdict.UNKNOWN
    assert not found.diagnosis.culprits
    assert "there is no capture of a3" in found.diagnosis.summary


def test_ranks_may_be_on_the_node_that_was_reached_too() -> None:
    captures = run(4, 2, {5: sleeper()})
    failed = [*silent("a4"), QueriedNode(name="a3", state="unable", reason="no py-spy")]
    found = judged({name: captures[name] for name in ("a1", "a2")}, failed)

    assert found.diagnosis.verdict is Verdict.UNKNOWN
    assert not found.diagnosis.culprits


SOFT = process(
    "recv (socket.py:1)", "ask_peer (train.py:9)", wchan="unix_stream_data_wait", syscall="recvfrom",
    move=still(span=20.0),
)  # fmt: skip

POLLS = process("wait_file (train.py:33)", wchan="ep_poll", move=still(span=20.0))
SPINS = process("step (train.py:44)", state="R", wchan="0", move=still(cpu=1.0), active=True)
VICTIMS = (SOFT, POLLS, SPINS)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whichever_nodes_are_missing_no_wrong_rank_is_named(data: st.DataObject) -> None:
    """One rank sleeps; others may wait for it where no stack shows that it is a wait for a rank."""
    nodes, each = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 3))
    world = nodes * each
    culprit = data.draw(st.integers(0, world - 1))
    odd = {culprit: sleeper()}
    for victim in data.draw(st.lists(st.sampled_from(VICTIMS), max_size=3)):
        odd.setdefault(data.draw(st.integers(0, world - 1)), victim)
    captures = run(nodes, each, odd)
    missing = data.draw(st.sets(st.sampled_from(sorted(captures)), max_size=nodes - 1))
    states = {
        name: data.draw(st.sampled_from(["down", "silent", "unable", "refused"]))
        for name in missing
    }
    failed = [QueriedNode(name=name, state=state) for name, state in states.items()]
    found = judged({n: c for n, c in captures.items() if n not in missing}, failed)

    blamed = set(named(found)) - {None}
    if missing or found.diagnosis.confidence is not Confidence.LOW:
        assert blamed <= {culprit}
    assert not missing or found.diagnosis.confidence is not Confidence.HIGH
    assert {one.node for one in found.diagnosis.culprits if one.kind == "node"} <= missing


def test_a_majority_of_those_who_answered_is_none() -> None:
    """7 of 16 ranks are on a branch of their own; with most of the others silent they look like the many."""
    captures = run(8, 2, dict.fromkeys(range(7), OTHER))
    kept = {name: captures[name] for name in ("a1", "a2", "a3", "a4")}
    found = judged(kept, silent("a5", "a6", "a7", "a8"))

    assert not [one for one in found.diagnosis.culprits if one.kind == "rank"], found.diagnosis


# --- a list of nodes that does not fit -------------------------------------------------------------


def test_ranks_that_never_came_are_named_with_the_host_that_has_none() -> None:
    captures = run(3, 2, rest=starter())
    answers = replies({name: captures[name] for name in ("a1", "a2")})
    answers["a3"] = NodeReply(node="a3", machine="boot a3")
    (one,) = merge(NodeReplies(answers), "Slurm").runs
    found = diagnose(*one)

    assert found.diagnosis.verdict is Verdict.INIT_INCOMPLETE
    assert [(one.rank, one.node) for one in found.diagnosis.culprits] == [(4, "a3"), (5, "a3")]
    assert "a3 answered, and no rank of the job runs there" in found.diagnosis.evidence


def test_where_a_person_named_the_nodes_the_others_may_run_elsewhere() -> None:
    captures = run(3, 2, rest=starter())
    del captures["a3"]
    found = judged(captures, listed_by="")

    assert found.diagnosis.verdict is Verdict.INIT_INCOMPLETE
    assert not found.diagnosis.culprits
    assert found.diagnosis.summary.startswith("Ranks 4-5 have no process that was seen on a[1-2]")


@pytest.mark.parametrize(("uid", "missing"), [(1234, []), (0, [3])])
def test_ranks_on_a_node_that_hides_processes_are_not_missing(uid: int, missing: list[int]) -> None:
    """Whoever looks as the job's user, which is 0 here, sees all processes that may be ranks of it."""
    captures = run(2, 2, rest=starter())
    less = node_capture("a2", captures["a2"].ranks[:1])
    answers = replies({"a1": captures["a1"], "a2": less})
    answers["a2"] = msgspec.structs.replace(answers["a2"], hidden=True, uid=uid)
    (one,) = merge(NodeReplies(answers), "Slurm").runs

    assert named(diagnose(*one)) == missing


# --- nodes that lie --------------------------------------------------------------------------------


def test_of_two_nodes_that_show_one_rank_neither_is_believed() -> None:
    captures = run(3, 2, {5: sleeper()})
    liar = node_capture("a4", [rank(5, waiter(), 6), rank(0, sleeper(), 6)])
    (one,) = merged(captures | {"a4": liar}).runs
    refused = {node.name: node.reason for node in one.queried.nodes if node.state == "refused"}

    assert refused == {
        "a1": "its answer shows rank 0, which a4 shows too",
        "a3": "its answer shows rank 5, which a4 shows too",
        "a4": "its answer shows rank 0, which a[1,3] shows too",
    } or set(refused) == {"a1", "a3", "a4"}
    assert [capture.node for capture in one.captures] == ["a2"]
    assert not diagnose(*one).diagnosis.culprits


def test_where_all_contradict_one_another_there_is_no_run() -> None:
    captures = run(1, 2)
    found = merged(captures | {"a2": node_capture("a2", captures["a1"].ranks)})

    assert not found.runs
    assert {node.state for node in found.queried.nodes} == {"refused"}


def test_two_names_of_one_machine_are_one_node() -> None:
    captures = run(2, 2, {3: sleeper()})
    answers = replies(captures)
    answers["localhost"] = answers["a2"]
    (one,) = merge(NodeReplies(answers), "").runs

    assert [capture.node for capture in one.captures] == ["a1", "a2"]
    assert not one.queried.absent
    assert named(diagnose(*one)) == [3]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([rank(9, waiter(), 8)], "says 8 ranks and shows rank 9"),
        ([rank(-1, waiter(), 8)], "says 8 ranks and shows rank -1"),
        ([rank(3, waiter(), 8), rank(3, waiter(), 8)], "shows rank 3 twice"),
        ([rank(0, waiter(), 1 << 40)], "says 1099511627776 ranks and shows rank 0"),
    ],
)
def test_impossible_numbers_are_refused_in_words(ranks: list, words: str) -> None:
    captures = run(2, 4, {5: sleeper()}) | {"zz": node_capture("zz", ranks)}
    (one,) = merged(captures).runs

    assert [n.reason for n in one.queried.nodes if n.name == "zz"] == [f"its answer {words}"]
    assert [mark.message for mark in one.captures[0].remarks] == [
        f"zz is not believed: its answer {words}"
    ]


def test_another_run_on_the_same_nodes_is_another_report() -> None:
    captures = run(2, 2, {3: sleeper()})
    identity = msgspec.structs.replace(rank(0, waiter(), 1).identity, run_id="8.0", pid=77)
    other = msgspec.structs.replace(rank(0, waiter(), 1), identity=identity)
    answers = replies(captures)
    answers["a1"] = msgspec.structs.replace(
        answers["a1"], captures=(captures["a1"], node_capture("a1", [other]))
    )
    found = merge(NodeReplies(answers), "")

    assert [len(one.captures) for one in found.runs] == [2, 1]
    assert len({one.captures[0].job.id for one in found.runs}) == 2


def test_whoever_starts_a_process_under_the_run_id_of_another_is_not_in_that_run() -> None:
    """Its ranks would join his, and his stacks its report."""
    whose = {"a1": 1000, "a2": 1000, "a3": 6666}
    captures = {
        node: msgspec.structs.replace(one, job=msgspec.structs.replace(one.job, uid=whose[node]))
        for node, one in run(3, 2, {1: sleeper()}).items()
    }
    found = merge(NodeReplies(replies(captures)), "")

    assert [[one.node for one in each.captures] for each in found.runs] == [["a1", "a2"], ["a3"]]


def test_a_node_of_another_world_size_is_refused() -> None:
    captures = run(3, 2, {1: sleeper()})
    captures["a3"] = node_capture("a3", [rank(6, waiter(), 8), rank(7, waiter(), 8)])
    (one,) = merged(captures).runs

    reasons = {node.name: node.reason for node in one.queried.nodes if node.reason}
    assert reasons == {"a3": "its answer says a world of 8 ranks where the others say 6"}


def test_one_node_with_many_ranks_does_not_outvote_the_others() -> None:
    captures = run(3, 2, {1: sleeper()})
    captures["zz"] = node_capture("zz", [rank(n, waiter(), 5000) for n in range(6, 200)])
    (one,) = merged(captures).runs

    assert [node.name for node in one.queried.nodes if node.state == "refused"] == ["zz"]
    assert named(diagnose(*one)) == [1]


def test_what_a_node_calls_itself_counts_for_nothing() -> None:
    captures = run(2, 2, {3: sleeper()})
    captures["a2"] = msgspec.structs.replace(captures["a2"], node="a1<script>")
    (one,) = merged(captures).runs

    assert [capture.node for capture in one.captures] == ["a1", "a2"]
    assert diagnose(*one).diagnosis.culprits[0].node == "a2"


def test_a_fault_is_as_old_as_its_own_node_says() -> None:
    """Ten seconds ago on a node whose clock is two days behind."""
    now, then = 1_700_000_000.0, 1_700_000_000.0 - 2 * 86_400
    fault = Fault(
        kind="xid", at=then - 10, words="Xid 79 (GPU has fallen off the bus)", code="xid_79", tier="fatal",
        rank=2, by="process", node="a2",
    )  # fmt: skip
    captures = run(2, 2)
    captures["a2"] = msgspec.structs.replace(captures["a2"], taken_at=then, faults=(fault,))
    found = judged(captures)

    assert captures["a1"].taken_at == now
    assert found.diagnosis.verdict is Verdict.GPU_FAULT
    assert "10 s before the capture" in " ".join(
        (found.diagnosis.summary, *found.diagnosis.evidence)
    )


def test_many_nodes_in_any_order_give_one_verdict() -> None:
    captures = run(64, 8, {300: sleeper()})
    names = list(captures)
    random.Random(3).shuffle(names)
    found = judged({name: captures[name] for name in names})

    assert named(found) == [300]
    assert found.diagnosis.culprits[0].node == "a38"


def test_the_stored_files_give_the_same_judgement(tmp_path: Path) -> None:
    captures = run(3, 2)
    del captures["a3"]
    (one,) = merged(captures, silent("a3")).runs
    for name, content in evidence(*one).items():
        (tmp_path / name).write_bytes(content)
    recorded = load_evidence(tmp_path)

    assert diagnose(recorded.captures, recorded.queried) == diagnose(*one)


@pytest.mark.parametrize("what", ["cpu_ratio", "started_at"])
def test_a_number_that_cannot_be_costs_its_own_node(what: str) -> None:
    """Found by changing any number of an answer: such a one ended the report of all nodes."""
    captures = run(3, 2)
    first, *others = captures["a1"].ranks
    if what == "cpu_ratio":
        moves = msgspec.structs.replace(first.process.movement, cpu_ratio=1e308)
        process = msgspec.structs.replace(first.process, movement=moves)
        first = msgspec.structs.replace(first, process=process)
        captures["a1"] = msgspec.structs.replace(captures["a1"], ranks=(first, *others))
    else:
        job = msgspec.structs.replace(captures["a1"].job, started_at=1e12)
        captures["a1"] = msgspec.structs.replace(captures["a1"], job=job)
    (found,) = merged(captures).runs

    assert found.queried.named("refused") == ("a1",)
    assert [one.node for one in found.captures] == ["a2", "a3"]


@pytest.mark.parametrize(
    ("waiting", "is_named"),
    [((2, 4, 5), True), ((4, 5), True), ((2,), True), ((2, 4), True), ((), False)],
)
def test_where_the_first_node_has_died_who_sleeps_is_named_while_others_wait(
    waiting: tuple[int, ...], is_named: bool
) -> None:
    """Its death resets their connections: those who have left wait for nobody any more."""
    facts = {"a2": [rank(3, sleeper(), 6)], "a3": []}
    for number in waiting:
        facts["a2" if number < 4 else "a3"].append(rank(number, waiter(), 6))
    captures = {name: node_capture(name, ranks) for name, ranks in facts.items() if ranks}
    run_ = merged(captures, silent("a1"), "").runs[0]
    found = diagnose(run_.captures, run_.queried).diagnosis
    assert [(one.rank, one.node) for one in found.culprits] == ([(3, "a2")] if is_named else [])
    assert found.confidence is Confidence.LOW


RACKS = {"rack1": "a[1-2]", "rack2": "a[3-4]"}


def rack_words(odd: tuple[int, ...], *lost: str, topology: dict[str, str] = RACKS) -> list[str]:
    """What is told of racks, of a run on four nodes with two ranks each."""
    found = run(4, 2, dict.fromkeys(odd, sleeper()))
    captures = {name: one for name, one in found.items() if name not in lost}
    run_ = merged(captures, silent(*lost), "").runs[0]
    diagnosis = diagnose(run_.captures, placed(run_.queried, topology)).diagnosis
    return [one for one in diagnosis.evidence if "rack" in one]


def test_what_the_suspects_share_may_be_a_rack() -> None:
    assert rack_words((4, 5, 6, 7)) == [
        "all ranks that do not wait (4-7) run on a[3-4] in rack2: they are all ranks of it"
    ]
    assert rack_words((4, 7)) == [
        "all ranks that do not wait (4,7) run on a[3-4] in rack2: they are not all ranks of it"
    ]
    assert rack_words((2, 7)) == []
    assert rack_words((4, 5, 6, 7), topology={}) == []
    assert rack_words((2, 7), topology={"rack": "a[1-4]"}) == [], "all of them are there"
    assert rack_words((), "a3", "a4") == ["all nodes without a capture (a[3-4]) are in rack2"]


def test_a_node_is_known_by_its_short_name_too() -> None:
    result = placed(
        QueriedNodes(nodes=(QueriedNode(name="a3.cluster.org"), QueriedNode(name="b1"))), RACKS
    )
    assert [one.place for one in result.nodes] == ["rack2", ""]
