"""Who coordinates: one stall has one id, whoever notices it and however often; nothing that cannot be is believed."""

import msgspec
import pytest

from mldebug.cluster.announcement_size import fitting
from mldebug.cluster.coordinator import DOUBT, MOVES, Coordinator
from mldebug.cluster.known_peers import CaptureCall
from mldebug.cluster.messages import (
    MAX_MESSAGE,
    SCHEMA,
    AnnouncedExit,
    Announcement,
    Relayed,
    RunNews,
    RunWord,
    Signal,
    Welcome,
    Whole,
    believed,
    read,
)
from mldebug.cluster.quiet_check import HOLD
from mldebug.cluster.roster import FRESH, KEPT
from mldebug.cluster.run_identity import run_id
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Confidence, Culprit, Diagnosis, Gap, Verdict
from mldebug.status.cluster_lines import cluster_lines, stalled

KEY = ("env", "", "n1:29500")
WHOLE = Whole(
    report="first",
    node="n1",
    diagnosis=Diagnosis(
        verdict=Verdict.UNKNOWN, culprits=(), confidence=Confidence.LOW, summary="x", evidence=(),
        next_steps=(),
    ),
)  # fmt: skip


def news(ranks: str, stage: str = "watching", incident: str = "", **more: object) -> RunNews:
    run_news = RunNews(key=KEY, world_size=6, ranks=ranks, stage=stage, incident=incident)
    return msgspec.structs.replace(run_news, **more)


def announced(node: str, *runs: RunNews, agent: str = "") -> Announcement:
    return Announcement(node=node, agent=agent or f"agent of {node}", port=9754, runs=runs)


def three(
    coordinator: Coordinator,
    now: float,
    *stages: str,
    ids: tuple[str, ...] = ("", "", ""),
    told_of: bool = False,
) -> list[CaptureCall]:
    for number, (stage, own) in enumerate(zip(stages, ids, strict=True), 1):
        ranks = f"{2 * number - 2}-{2 * number - 1}"
        announcement = announced(f"n{number}", news(ranks, stage, own, published=told_of))
        coordinator.update(announcement, f"10.0.0.{number}", now)
    return list(coordinator.due(now))


def test_a_stall_is_called_once_on_all_nodes() -> None:
    one = Coordinator()
    assert three(one, 0.0, "watching", "watching", "watching") == []
    (call,) = three(one, 1.0, "suspect", "blamed", "quiet", ids=("", "first", ""))
    assert (call.incident, call.noticed_by) == ("first", "n2")
    assert [member.announcement.node for member in call.peers] == ["n1", "n2", "n3"]

    again = three(one, 2.0, "blamed", "blamed", "blamed", ids=("second", "first", "third"))
    assert again == []
    word = one.word(news("4-5"), "n3", 2.0)
    assert (word.incident, word.over) == ("first", "")


def test_all_notice_it_in_the_same_second_and_one_id_is_left() -> None:
    one = Coordinator()
    (call,) = three(one, 0.0, "blamed", "blamed", "blamed", ids=("a", "b", "c"))
    words = {one.word(news(""), f"n{number}", 0.0).incident for number in (1, 2, 3)}
    assert words == {call.incident}


def moved(
    node: str, at: float, ago: float, stage: str = "quiet", incident: str = ""
) -> Announcement:
    """A node that has seen a step so many seconds before `at`."""
    step = Signal(kind="step", value=at - ago, age=ago)
    return announced(node, news("0-1" if node == "n1" else "2-3", stage, incident, signals=(step,)))


def test_an_incident_needs_every_answering_node_quiet() -> None:
    """n1 stands still for a minute, n2 goes on until second 62: it is asked when that one is quiet, too."""
    one, result = Coordinator(), list[float]()
    for now in range(60, 75):
        one.update(moved("n1", now, now - 1.0, "blamed", "first"), "10.0.0.1", float(now))
        one.update(moved("n2", now, max(0.5, now - 62.0)), "10.0.0.2", float(now))
        result += [float(now) for _ in one.due(float(now))]
    assert result == [
        67.0
    ]  # held back from 60: `HOLD` seconds and the pace, whatever the other one does
    one, result = Coordinator(), []
    for now in range(60, 75):
        one.update(moved("n1", now, now - 1.0, "blamed", "first"), "10.0.0.1", float(now))
        one.update(moved("n2", now, now - 57.0), "10.0.0.2", float(now))
        result += [float(now) for _ in one.due(float(now))]
    assert result == [63.0]  # as soon as that one has been quiet for as long


def test_a_stall_that_was_none_is_not_called() -> None:
    """Whoever noticed it sees it move again while the call is held back."""
    one = Coordinator()
    one.update(moved("n1", 60.0, 59.0, "blamed", "first"), "10.0.0.1", 60.0)
    one.update(moved("n2", 60.0, 0.5), "10.0.0.2", 60.0)
    assert list(one.due(60.0)) == []
    one.update(moved("n1", 62.0, 0.1, "watching"), "10.0.0.1", 62.0)
    assert list(one.due(62.0)) == list(one.due(70.0)) == []


def test_who_announces_seldom_moves_until_it_says_otherwise() -> None:
    """In a large cluster the last word of n2 is of 15 s ago: it was moving then."""
    one = Coordinator()
    for number in range(3, 1003):
        one.update(announced(f"n{number}"), f"10.0.1.{number}", 50.0)
    one.update(moved("n2", 45.0, 0.1), "10.0.0.2", 45.0)
    one.update(moved("n1", 60.0, 39.0, "blamed", "first"), "10.0.0.1", 60.0)
    assert list(one.due(60.0)) == []
    word = one.word(moved("n1", 60.0, 39.0, "blamed", "first").runs[0], "n1", 60.0)
    assert word.hold == pytest.approx(HOLD + one.pace)  # so long may n1 have to wait
    one.update(moved("n2", 65.0, 20.1), "10.0.0.2", 65.0)
    assert [call.incident for call in one.due(65.0)] == ["first"]


def test_each_stall_is_held_back_for_itself() -> None:
    """The second one of a run, after the first was captured, and after it was none."""
    one = Coordinator()

    def noticed(at: float, stage: str = "blamed", incident: str = "") -> list[str]:
        one.update(moved("n1", at, 40.0, stage, incident), "10.0.0.1", at)
        one.update(moved("n2", at, 0.5), "10.0.0.2", at)
        return [call.incident for call in one.due(at)]

    assert [noticed(at, incident="a") for at in (100.0, 104.0, 107.0)] == [[], [], ["a"]]
    assert noticed(500.0, "watching") == []
    assert [noticed(at, incident="b") for at in (1000.0, 1004.0)] == [[], []]
    assert noticed(1005.0, "watching") == []
    assert [noticed(at, incident="c") for at in (2000.0, 2004.0)] == [[], []]


def test_nodes_that_stopped_together_are_asked_at_once() -> None:
    one = Coordinator()
    one.update(moved("n1", 60.0, 59.0, "blamed", "first"), "10.0.0.1", 60.0)
    one.update(moved("n2", 60.0, 58.5), "10.0.0.2", 60.0)
    assert [call.incident for call in one.due(60.0)] == ["first"]


def test_a_node_that_is_cut_off_holds_nothing_back() -> None:
    """It moved when it was heard last; it does not answer any more."""
    one = Coordinator()
    one.update(moved("n2", 40.0, 0.0), "10.0.0.2", 40.0)
    one.update(moved("n1", 60.0, 59.0, "blamed", "first"), "10.0.0.1", 60.0)
    assert [call.incident for call in one.due(60.0)] == ["first"]


def test_a_stall_without_an_id_waits_for_one() -> None:
    assert three(Coordinator(), 0.0, "blamed", "watching", "watching") == []


def test_it_is_over_when_whoever_noticed_it_says_so() -> None:
    one = Coordinator()
    three(one, 0.0, "blamed", "quiet", "quiet", ids=("first", "", ""))
    one.captured(news(""), WHOLE)
    assert one.word(news(""), "n2", 1.0).whole == msgspec.structs.replace(WHOLE, report="first")
    three(one, 2.0, "watching", "quiet", "quiet", ids=("", "first", "first"))

    assert one.ended() == [("first", "the job moves again")]
    assert one.ended() == []
    assert one.word(news(""), "n2", 2.0).over == "the job moves again"
    (call,) = three(one, 9.0, "blamed", "quiet", "quiet", ids=("next", "", ""))
    assert call.incident == "next"


def test_it_stays_open_while_whoever_noticed_it_is_silent() -> None:
    one = Coordinator()
    three(one, 0.0, "quiet", "quiet", "blamed", ids=("", "", "first"))
    for now in (FRESH + 1.0, 2 * FRESH):
        for number in (1, 2):
            one.update(
                announced(f"n{number}", news("0", "quiet", "first")), f"10.0.0.{number}", now
            )
        assert list(one.due(now)) == []
    assert list(one.due(4 * FRESH)) == []
    assert one.ended() == []  # all are silent: nobody knows
    for number in (1, 2):
        one.update(announced(f"n{number}"), f"10.0.0.{number}", 5 * FRESH)
    assert list(one.due(5 * FRESH)) == []
    assert one.ended() == [("first", "no node shows the job any more")]


def test_a_coordinator_that_heard_nobody_for_a_while_ends_nothing() -> None:
    one = Coordinator()
    blamed = ("blamed", "blamed", "blamed")
    three(one, 0.0, *blamed, ids=("x", "x", "x"))
    assert list(one.due(FRESH + 30.0)) == []
    assert three(one, FRESH + 31.0, *blamed, ids=("x", "x", "x")) == []
    word = one.word(news("0-1", "blamed", "x"), "n1", FRESH + 31.0)
    assert (word.incident, word.over) == ("x", "")


def test_an_agent_that_was_started_again_has_noticed_nothing() -> None:
    one = Coordinator()
    three(one, 0.0, "blamed", "quiet", "quiet", ids=("first", "", ""))
    for now in (2.0, DOUBT, DOUBT + 4.0):
        one.update(announced("n1", news("0-1"), agent="restarted"), "10.0.0.1", now)
        one.update(announced("n2", news("2-3", "quiet", "first")), "10.0.0.2", now)
        assert list(one.due(now)) == []
        assert one.ended() == ([("first", MOVES)] if now > DOUBT + 3.0 else [])


CRASH = AnnouncedExit(
    incident="zcrash",
    age=40.0,
    diagnosis=Diagnosis(
        verdict=Verdict.RANK_EXITED, culprits=(), confidence=Confidence.HIGH, summary="rank 2 crashed",
        evidence=(), next_steps=(),
    ),
)  # fmt: skip


def test_who_hangs_because_of_a_crash_elsewhere_has_the_incident_of_the_crash() -> None:
    one = Coordinator()
    one.update(announced("n2", news("", "ended", end=CRASH)), "10.0.0.2", 0.0)
    for rank, name in enumerate(("n1", "n3")):
        announcement = announced(name, news(str(rank), "blamed", f"a{name}", age=500.0))
        one.update(announcement, "10.0.0.1", 30.0)
    (call,) = one.due(30.0)
    assert (call.incident, call.cause) == ("zcrash", CRASH)
    assert [each.announcement.node for each in call.peers] == ["n1", "n2", "n3"]
    word = one.word(news("0", "blamed", "an1"), "n1", 30.0)
    assert (word.incident, word.caused) == ("zcrash", True)
    assert list(one.due(31.0)) == []


def test_the_word_of_a_crash_may_come_after_the_call() -> None:
    one = Coordinator()
    (call,) = three(one, 0.0, "blamed", "watching", "quiet", ids=("first", "", ""))
    assert call.cause is None
    one.update(announced("n1", news("0-1", "blamed", "first", age=500.0)), "10.0.0.1", 1.0)
    one.update(announced("n2", news("", "ended", end=CRASH)), "10.0.0.2", 1.0)
    (call,) = one.due(1.0)
    assert (call.incident, call.cause) == ("zcrash", CRASH)
    assert one.renamed() == [("first", "zcrash")]


@pytest.mark.parametrize("age", [0.0, 39.0])
def test_what_crashed_before_the_run_began_is_no_cause(age: float) -> None:
    """Started again with the same master: it is another run, or nobody knows."""
    one = Coordinator()
    one.update(announced("n2", news("", "ended", end=CRASH)), "10.0.0.2", 0.0)
    one.update(announced("n1", news("0", "blamed", "first", age=age)), "10.0.0.1", 0.0)
    (call,) = one.due(0.0)
    assert (call.incident, call.cause) == ("first", None)


def test_of_several_ends_the_first_that_names_somebody_is_the_cause() -> None:
    """The others lost their peer: they say so earlier, and name nobody."""
    culprit = Culprit(kind="rank", rank=2, node="n2", pid=1, reason="was killed")
    named = msgspec.structs.replace(CRASH.diagnosis, culprits=(culprit,))
    crash = msgspec.structs.replace(CRASH, diagnosis=named, age=39.0)
    one = Coordinator()
    follows = msgspec.structs.replace(CRASH, incident="afollows")
    one.update(announced("n1", news("0", "blamed", "first", age=500.0)), "10.0.0.1", 0.0)
    one.update(announced("n2", news("", "ended", end=crash)), "10.0.0.2", 0.0)
    one.update(announced("n3", news("", "ended", end=follows)), "10.0.0.3", 0.0)
    (call,) = one.due(0.0)
    assert call.cause == crash


def test_where_a_run_has_only_ended_it_does_not_live() -> None:
    """Its stall is over when nobody shows living ranks any more."""
    one = Coordinator()
    three(one, 0.0, "blamed", "quiet", "quiet", ids=("first", "", ""))
    for number in (1, 2, 3):
        announcement = announced(f"n{number}", news("", "ended", end=CRASH))
        one.update(announcement, f"10.0.0.{number}", 2.0)
    assert list(one.due(2.0)) == []
    assert one.ended() == [("first", "no node shows the job any more")]
    assert one.named("") == ()


def test_a_stall_that_is_over_does_not_rename_the_next() -> None:
    """n3 has not heard yet that it is over."""
    one = Coordinator()
    three(one, 0.0, "blamed", "quiet", "quiet", ids=("2A", "2A", "2A"))
    three(one, 2.0, "watching", "quiet", "quiet", ids=("2A", "2A", "2A"))
    (call,) = three(one, 4.0, "blamed", "quiet", "blamed", ids=("3B", "", "2A"))
    assert call.incident == "3B"
    three(one, 5.0, "blamed", "quiet", "blamed", ids=("3B", "", "2A"))
    assert one.word(news("0-1", incident="3B"), "n1", 5.0).incident == "3B"
    late = one.word(news("4-5", incident="2A"), "n3", 5.0)
    assert (late.incident, late.over) == ("2A", MOVES)


def test_a_new_coordinator_does_not_leave_an_old_stall_open_for_ever() -> None:
    one = Coordinator()
    result = news("2-3", incident="old")
    three(one, 0.0, "watching", "watching", "watching", ids=("", "old", ""))
    assert one.word(result, "n2", 0.0).over == ""
    three(one, DOUBT + 1.0, "watching", "watching", "watching", ids=("", "old", ""))
    word = one.word(result, "n2", DOUBT + 1.0)
    assert (word.incident, word.over) == ("old", MOVES)


def test_a_node_may_announce_its_runs_in_several_circles() -> None:
    one = Coordinator()
    other = RunNews(key=("env", "", "n5:1"), world_size=8, ranks="0")
    step = Signal(kind="step", value=5.0, age=1.0)
    first = news("0-1", signals=(step,))
    one.update(msgspec.structs.replace(announced("n1", first), circle="a"), "10.0.0.1", 0.0)
    one.update(msgspec.structs.replace(announced("n1", other), circle="b"), "10.0.0.1", 4.0)
    (member,) = one.view("n1", [], 4.0).peers
    assert {run.key for run in member.runs} == {KEY, other.key}
    (signal,) = one.word(news("2-3"), "n2", 4.0).signals
    assert signal.age == 5.0

    later = 2 * FRESH  # the first run has ended: nobody announces it
    one.update(msgspec.structs.replace(announced("n1", other), circle="b"), "10.0.0.1", later)
    assert [run.key for run in one.view("n1", [], later).peers[0].runs] == [other.key]


def test_who_does_not_lead_a_run_calls_nobody() -> None:
    one = Coordinator()
    one.update(announced("n1", news("0-1", "blamed", "i")), "10.0.0.1", 0.0)
    assert list(one.due(0.0, lambda key: key != KEY)) == []
    (call,) = one.due(0.0, lambda key: key == KEY)
    assert call.incident == "i"


def test_who_is_lost_is_called_all_the_same() -> None:
    one = Coordinator()
    three(one, 0.0, "watching", "watching", "watching")
    later = FRESH + 20.0
    one.update(announced("n1", news("0-1", "blamed", "first")), "10.0.0.1", later)
    (call,) = one.due(later)
    assert [(member.announcement.node, member.at) for member in call.peers] == [
        ("n1", later),
        ("n2", 0.0),
        ("n3", 0.0),
    ]


def test_who_is_long_gone_is_forgotten() -> None:
    one = Coordinator()
    three(one, 0.0, "watching", "watching", "watching")
    list(one.due(KEPT + 1.0))
    assert one.view("n1", ["n2", "10.0.0.9"], KEPT + 1.0).peers[0].seconds_ago is None


def test_progress_of_others_travels_with_its_age() -> None:
    one = Coordinator()
    result = Signal(kind="step", value=41.0, age=1.5)
    one.update(announced("n1", news("0-1", signals=(result,))), "10.0.0.1", 10.0)
    one.update(announced("n2", news("2-3")), "10.0.0.2", 11.0)

    (signal,) = one.word(news("2-3"), "n2", 12.0).signals
    assert (signal.kind, signal.value, signal.age) == ("step", 41.0, 3.5)
    assert one.word(news("0-1"), "n1", 12.0).signals == ()
    assert one.word(news("2-3"), "n2", 11.0 + FRESH).signals == ()


def test_many_nodes_announce_themselves_less_often() -> None:
    one = Coordinator()
    for number in range(1024):
        one.update(
            announced(f"n{number}", news(str(number))), f"10.0.{number // 250}.{number % 250}", 0.0
        )
    assert one.pace == 20.0
    assert len(one.fresh(FRESH + 30.0)) == 1024
    assert one.fresh(FRESH + 60.0) == ()


def test_two_nodes_of_one_name_are_not_mixed() -> None:
    one = Coordinator()
    one.update(announced("n1", news("0")), "10.0.0.1", 0.0)
    one.update(announced("n1", news("5"), agent="liar"), "10.0.0.66", 1.0)
    assert "10.0.0.1" in one.refused["10.0.0.66"]
    assert one.view("n1", [], 1.0).peers[0].runs[0].ranks == "0"

    one.update(announced("n1", news("1"), agent="restarted"), "10.0.0.1", 2.0)
    assert one.view("n1", [], 2.0).peers[0].runs[0].ranks == "1"


def test_attempts_are_told_apart() -> None:
    one = Coordinator()
    three(one, 0.0, "blamed", "quiet", "quiet", ids=("first", "", ""))
    one.update(announced("n1", news("0-1", "blamed", "later", attempt=1)), "10.0.0.1", 1.0)
    (call,) = one.due(1.0)
    assert (call.incident, [m.announcement.node for m in call.peers]) == ("later", ["n1"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b'{"schema": "mldebug.peer/9", "version": "7.0"}', "newer and speaks mldebug.peer/9"),
        (b'{"schema": "mldebug.peer/0"}', "older and speaks mldebug.peer/0"),
        (b'{"schema": "mldebug.node/1"}', "no message of an agent"),
        (msgspec.json.encode({"schema": SCHEMA, "node": "a"}), "malformed"),
        (b'{"a":' * 50_000, "malformed"),
    ],
)
def test_what_is_no_message_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        read(data, Announcement)


def test_unknown_fields_are_ignored_and_the_schema_is_written() -> None:
    welcome = Welcome(node="a", agent="b", runs=(RunWord(key=KEY, whole=WHOLE),))
    later = msgspec.to_builtins(welcome) | {"css_class": "fine"}
    assert later["schema"] == SCHEMA
    assert read(msgspec.json.encode(later), Welcome) == welcome


def test_all_nodes_in_lines() -> None:
    one = Coordinator()
    announcement = announced("n1", news("0-1", step=7, name=""))
    one.update(announcement, "10.0.0.1", 0.0)
    for number, stage in ((2, "blamed"), (3, "quiet")):
        more = news(f"{2 * number - 2}-{2 * number - 1}", stage, "i", sentence=f"{stage}\x1b[31m")
        one.update(announced(f"n{number}", more), f"10.0.0.{number}", 40.0)
    one.update(announced("n2", agent="liar"), "10.0.0.9", 41.0)
    view = one.view("n2", ["n3", "n4"], 42.0)

    assert stalled(view)
    assert list(cluster_lines(view)) == [
        "n2 coordinates; 2 of 4 nodes here: n[2-3]",
        f" ({run_id(KEY)}): ranks 0-5 of 6 on n[1-3], step 7",
        "  blamed: blamed",
        "not heard of for up to 42 s: n1",
        "never heard of: n4",
        "not believed: 10.0.0.9: it calls itself n2, as 10.0.0.2 does",
    ]
    assert not stalled(Coordinator().view("n1", [], 0.0))


@pytest.mark.parametrize(
    "announcement",
    [
        announced("../../etc"),
        announced("a b"),
        announced(""),
        msgspec.structs.replace(announced("a"), port=0),
        announced("a", news("0-7")),  # of 6
        announced("a", news("5-")),
        announced("a", news("x")),
        announced("a", news("0", world_size=2_000_000)),
        announced("a", news("0", incident="../x")),
    ],
)
def test_what_cannot_be_is_not_believed(announcement: Announcement) -> None:
    with pytest.raises(EvidenceError):
        believed(announcement)


def test_words_of_others_are_cleaned() -> None:
    result = believed(announced("a", news("0", name="\x1b[2Jx" * 100, sentence="y" * 9000)))
    assert "\x1b" not in result.runs[0].name
    assert len(result.runs[0].sentence) <= 500


def test_two_coordinators_end_with_the_first_of_two_ids() -> None:
    """Each had called its own side; when one is left, its stall and that of the others have one id."""
    one = Coordinator()
    three(one, 0.0, "blamed", "quiet", "quiet", ids=("20300101T000009Z", "", ""))
    one.captured(news("0-1"), WHOLE)
    ids = ("20300101T000009Z", "", "20300101T000007Z")
    three(one, 9.0, "blamed", "quiet", "blamed", ids=ids, told_of=True)
    for node in ("n1", "n2", "n3"):
        word = one.word(news(""), node, 9.0)
        assert word.incident == "20300101T000007Z"
        assert word.whole is not None
        assert word.whole.report == word.incident


def test_who_was_heard_of_before_the_run_began_may_have_it() -> None:
    one = Coordinator()
    one.update(announced("n9"), "10.0.0.9", 0.0)  # then it found another coordinator
    later = FRESH + 10.0
    one.update(announced("n8"), "10.0.0.8", later)  # it is here, and has no such run
    one.update(announced("n1", news("0-1", "blamed", "i")), "10.0.0.1", later)
    (call,) = one.due(later)
    assert [member.announcement.node for member in one.others(call, later)] == ["n9"]


def test_a_call_that_came_to_nothing_is_made_again_a_few_times() -> None:
    one = Coordinator()
    (call,) = three(one, 0.0, "blamed", "quiet", "quiet", ids=("first", "", ""))
    for now in (1.0, 2.0, 3.0):
        assert one.failed(call.news)
        (call,) = three(one, now, "blamed", "quiet", "quiet", ids=("first", "first", "first"))
        assert call.incident == "first"
        assert list(one.due(now)) == []
    assert not one.failed(call.news)
    assert three(one, 4.0, "blamed", "quiet", "quiet", ids=("first", "", "")) == []


def test_a_change_of_an_id_is_told_once() -> None:
    one = Coordinator()
    three(one, 0.0, "blamed", "quiet", "quiet", ids=("9", "", ""))
    three(one, 1.0, "blamed", "quiet", "blamed", ids=("9", "", "7"))
    assert one.renamed() == []  # n3 has held it back, and takes ours
    three(one, 2.0, "blamed", "quiet", "blamed", ids=("9", "", "7"), told_of=True)
    assert one.renamed() == [("9", "7")]
    assert one.renamed() == []


# --- what fits into one announcement ------------------------------------------------------------------


def listed(uid: int, number: int, letters: int) -> RunNews:
    nodes = f"{'n' * (letters - 4)}{number:04}"
    return RunNews(key=("torchrun", f"{number}", f"uid {uid}"), world_size=8, node_list=nodes)


def test_long_lists_of_nodes_are_cut_and_say_so() -> None:
    """More than a MiB is refused whole, with all runs in it; one user's lists cost another nothing."""
    mine = tuple(listed(1000, number, 8000) for number in range(200))
    theirs = tuple(listed(1001, number, 8000) for number in range(20))
    announcement = announced("n1", *mine, *theirs)
    assert len(msgspec.json.encode(announcement)) > MAX_MESSAGE
    found = believed(read(msgspec.json.encode(fitting(announcement)), Announcement))
    assert len(msgspec.json.encode(found)) < MAX_MESSAGE
    assert [run.key for run in found.runs] == [run.key for run in announcement.runs]
    assert [run.node_list for run in found.runs[200:]] == [run.node_list for run in theirs]
    bare = [run for run in found.runs if not run.node_list]
    assert 100 < len(bare) < 150
    assert {gap.reason for run in bare for gap in run.gaps} == {
        "it was left out: an announcement of a node has at most 768 KiB"
    }
    assert not any(run.gaps for run in found.runs if run.node_list)
    for count in (2, 16):
        runs = [tuple(listed(1000, number, 8000) for number in range(200)) for _ in range(count)]
        relayed = tuple(
            Relayed(node="n9", agent="x", port=7, address="a", runs=one) for one in runs
        )
        all_of_it = fitting(msgspec.structs.replace(announcement, relayed=relayed))
        assert len(msgspec.json.encode(all_of_it)) < MAX_MESSAGE
        assert [run.key for run in all_of_it.runs] == [run.key for run in announcement.runs]
        assert len(all_of_it.relayed) >= 2
    small = announced("n1", *theirs)
    assert fitting(small) == small


def test_of_too_many_runs_each_user_has_as_many() -> None:
    mine = tuple(listed(1000, number, 10) for number in range(400))
    theirs = tuple(listed(1001, number, 10) for number in range(50))
    found = fitting(announced("n1", *mine, *theirs)).runs
    assert (len(found), found[-50:]) == (256, theirs)
    long = tuple(msgspec.structs.replace(one, sentence="x" * 9000) for one in mine[:200])
    found = fitting(announced("n1", *long, *theirs)).runs
    assert 70 < len(found) < 250
    assert found[-50:] == theirs


def test_a_list_that_was_cut_is_known_from_another_node_or_told_as_a_gap() -> None:
    coordinator = Coordinator()
    whole = news("0-1", "blamed", "first", node_list="n[1-3]")
    gap = Gap(what="the list", reason="it was left out")
    cut = news("2-3", "blamed", "first", gaps=(gap,))
    coordinator.update(announced("n1", cut), "10.0.0.1", 0.0)
    (call,) = coordinator.due(0.0)
    assert (call.node_list, call.gaps) == ("", (gap,))
    coordinator = Coordinator()
    coordinator.update(announced("n1", cut), "10.0.0.1", 0.0)
    coordinator.update(announced("n2", whole), "10.0.0.2", 0.0)
    (call,) = coordinator.due(0.0)
    assert (call.node_list, call.gaps) == ("n[1-3]", ())


def test_the_launchers_of_a_run_are_counted_over_all_nodes() -> None:
    coordinator = Coordinator()
    waiting = RunNews(key=("waits for nodes", "torchrun", "exp7", "port 1"), launchers=1)
    other = msgspec.structs.replace(waiting, key=("waits for nodes", "torchrun", "exp8", "port 1"))
    for name, news in (("n2", waiting), ("n1", waiting), ("n3", other)):
        announcement = Announcement(node=name, agent=name, port=1, runs=(news,))
        coordinator.update(announcement, f"host {name}", 5.0)
    assert coordinator.word(waiting, "n2", 5.0).present == ("n1", "n2")
    assert coordinator.word(other, "n3", 5.0).present == ("n3",)
    assert coordinator.word(waiting, "n2", 500.0).present == ()
    ranks = msgspec.structs.replace(waiting, launchers=0)
    assert coordinator.word(ranks, "n2", 5.0).present == ()


@pytest.mark.parametrize(("launchers", "over"), [(1, ""), (0, MOVES)])
def test_launchers_that_wait_for_nodes_are_not_said_to_move(launchers: int, over: str) -> None:
    """Their own agent closes the incident; of ranks whose stall nobody else notices it is over after a while."""
    coordinator = Coordinator()
    waiting = RunNews(key=("waits for nodes", "torchrun", "exp7", "port 1"), launchers=launchers, stage="confirmed", incident="first")  # fmt: skip
    for now in (5.0, DOUBT, DOUBT + 6.0):
        coordinator.update(announced("n1", waiting), "10.0.0.1", now)
        word = coordinator.word(waiting, "n1", now)
    assert word.over == over
