"""Which nodes are lemons: what speaks against a node, what does not, and where a GPU's history goes."""

from collections.abc import Iterable

import msgspec
import pytest

from mldebug.fleet.answers.lemons import (
    HALF_LIFE,
    MOST_STRAY,
    WINDOW,
    LemonList,
    NodeScore,
    lemon_lines,
    lemons,
    slurm_exclude,
)
from mldebug.fleet.events import AnyEvent, FleetGpu, IncidentEvent
from shared.fleet.fleet_events import DAY, NOW, attempt, fault, gpu, health, incident, over, probe


def judged(*events: AnyEvent, at: float = NOW) -> LemonList:
    """The list by these events; the culprits of incidents have told of the jobs themselves."""
    own = [
        attempt(culprit.node, began=one.since - 9, job=one.job, uid=one.uid)
        for one in events
        if isinstance(one, IncidentEvent)
        for culprit in one.culprits
    ]
    return believed_of((*own, *events), at)


def believed_of(events: Iterable[AnyEvent], at: float = NOW) -> LemonList:
    return lemons(sorted(events, key=lambda one: one.at), at)


def standing(found: LemonList, node: str) -> str:
    return next((one.standing for one in found.nodes if one.node == node), "well")


def of(found: LemonList, node: str) -> NodeScore:
    return next(one for one in found.nodes if one.node == node)


def ended(day: float, node: str = "n1", part: FleetGpu | None = None) -> tuple[AnyEvent, AnyEvent]:
    """A critical fault some days ago that is over."""
    began = fault(node, NOW - day * DAY, part)
    return began, over(began, NOW - day * DAY + 600)


def test_two_critical_faults_of_the_last_days_make_a_lemon() -> None:
    found = judged(*ended(0.1), *ended(2), *ended(3))
    assert standing(found, "n1") == "lemon"
    assert slurm_exclude(found) == "n1"


def test_one_fault_makes_none() -> None:
    assert standing(judged(*ended(1)), "n1") == "watch"


def test_a_fault_that_lasts_makes_the_node_ill_until_it_is_over() -> None:
    assert standing(judged(fault()), "n1") == "ill"
    assert slurm_exclude(judged(fault())) == "n1"
    assert standing(judged(fault(), over(fault(), NOW + 9)), "n1") == "watch"


def test_evidence_fades_and_is_forgotten() -> None:
    events = (*ended(0.1), *ended(2), *ended(3))
    assert standing(judged(*events, at=NOW + 2 * HALF_LIFE), "n1") == "watch"
    assert judged(*events, at=NOW + WINDOW + DAY).nodes == ()


def test_a_fault_that_comes_and_goes_all_day_is_one() -> None:
    flaps = [each for hour in range(20) for each in ended(hour / 24)]
    assert of(judged(*flaps), "n1").pieces == 1


def test_a_job_that_was_restarted_14_times_on_a_bad_gpu_has_met_one() -> None:
    restarts = [
        incident(f"i{number}", at=NOW - 3600 * number, since=NOW - 3600 * number)
        for number in range(14)
    ]
    assert of(judged(*restarts), "n2").pieces == 1
    others = [incident(f"j{number}", f"a{number}", job=f"job{number}") for number in range(2)]
    assert standing(judged(*restarts, *others), "n2") == "lemon"


def test_the_culprit_is_scored_and_not_who_told_it_or_waited() -> None:
    found = judged(*(incident(f"i{number}", "n1", "n2", job=f"j{number}") for number in range(3)))
    assert [one.node for one in found.nodes] == ["n2"]


@pytest.mark.parametrize("verdict", ["rank_busy", "rank_exited", "out_of_memory", "collective_mismatch", "dataloader_stalled", "unknown"])  # fmt: skip
def test_a_faulty_program_speaks_against_no_node(verdict: str) -> None:
    crashes = [incident(f"i{number}", verdict=verdict, since=NOW - number * DAY) for number in range(30)]  # fmt: skip
    assert judged(*crashes).nodes == ()


def test_many_jobs_that_blame_one_node_speak_against_it() -> None:
    crashes = [incident(f"i{number}", f"a{number}", verdict="rank_exited", job=f"job{number}", uid=1000 + number) for number in range(9)]  # fmt: skip
    assert standing(judged(*crashes), "n2") == "lemon"
    assert judged(*crashes[:2]).nodes == ()


def test_what_is_not_sure_does_not_count() -> None:
    guesses = [incident(f"i{number}", confidence="low", job=f"j{number}") for number in range(20)]
    assert judged(*guesses).nodes == ()
    halves = [incident(f"i{number}", confidence="medium", job=f"j{number}") for number in range(2)]
    assert of(judged(*halves), "n2").score == 1.0


def test_a_verdict_that_was_refined_counts_as_it_is_now() -> None:
    first = incident(blamed="n2")
    then = incident(blamed="n3", revision=2, at=NOW + 60, state="changed")
    found = judged(first, then)
    assert [one.node for one in found.nodes] == ["n3"]


@pytest.mark.parametrize("component", ["memory", "storage"])
def test_what_jobs_fill_speaks_against_no_node(component: str) -> None:
    full = [fault(at=NOW - day * DAY, component=component, action="") for day in range(9)]
    assert judged(*full).nodes == ()


@pytest.mark.parametrize("action", ["check_job", "check_settings"])
def test_what_is_to_be_mended_in_the_job_speaks_against_no_node(action: str) -> None:
    assert judged(*(fault(at=NOW - day * DAY, action=action) for day in range(9))).nodes == ()


def test_probes_of_one_node_speak_against_it_and_those_of_several_against_none() -> None:
    slow = [probe(at=NOW - day * 2 * DAY, trend="shifted", change=-0.2) for day in range(9)]
    assert of(judged(*slow), "n1").pieces == 9
    assert standing(judged(*slow), "n1") == "lemon"
    pairs = [msgspec.structs.replace(one, nodes="n[1-2]") for one in slow]
    assert judged(*pairs).nodes == ()
    faster = [msgspec.structs.replace(one, change=0.2) for one in slow]
    assert judged(*faster).nodes == ()


# --- what one node says of another ----------------------------------------------------------------


def test_a_node_is_blamed_only_for_jobs_that_it_has_told_of_itself() -> None:
    made_up = [incident(f"i{number}", "bad", job=f"j{number}") for number in range(9)]
    assert believed_of(made_up).nodes == ()
    assert believed_of([*made_up, attempt("n2", job="other")]).nodes == ()
    assert [one.node for one in believed_of([*made_up, attempt("n2", job="j1")]).nodes] == ["n2"]


def test_one_node_alone_makes_no_lemon_of_another() -> None:
    many = [
        incident(f"i{number}", "bad", job=f"j{number}", since=NOW - number) for number in range(50)
    ]
    found = judged(*many)
    assert (standing(found, "n2"), of(found, "n2").score) == ("watch", 1.0)


def test_one_node_cannot_take_back_what_another_has_said() -> None:
    """It sends an incident of the same id that blames nobody."""
    found = judged(incident(), incident(node="bad", blamed="", at=NOW + 9))
    assert [one.node for one in found.nodes] == ["n2"]


def test_one_node_s_lies_about_another_s_gpu_make_neither_lemon_nor_ill_of_it() -> None:
    part = gpu(7, "s7")
    lies = [fault("bad", NOW - day * DAY, part) for day in (1, 3, 5)]
    found = judged(health("n1", NOW - 60, part), *lies)
    assert (standing(found, "n1"), of(found, "n1").score <= 1.0) == ("watch", True)
    assert slurm_exclude(found) == ""
    assert slurm_exclude(judged(health("n1", NOW - 60, part), fault("n1", NOW - 50, part))) == "n1"


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "fallen off the bus"])
def test_a_node_that_lists_the_gpu_of_another_takes_no_fault_that_lasts_away(listed: bool) -> None:
    part = gpu(7, "s7")
    there = health("n1", NOW - 60, *((part,) if listed else ()))
    found = judged(there, fault("n1", NOW - 90, part), health("bad", NOW - 5, part))
    assert standing(found, "n1") == "ill"


def test_lies_within_a_day_of_what_others_say_take_no_evidence_away() -> None:
    """All of one job and day is one piece: the liar's is beyond what counts of one sender, and had taken the others' place."""
    true = [incident(f"i{day}", f"a{day}", job="j", since=NOW - day * DAY) for day in (2, 4, 6)]
    lies = [incident(f"l{day}", "bad", job="j", since=NOW - day * DAY - 60) for day in (2, 4, 6)]
    more = [incident(f"m{number}", "bad", job=f"m{number}", since=NOW - number) for number in range(9)]  # fmt: skip
    assert standing(judged(*true), "n2") == "lemon"
    assert standing(judged(*true, *lies, *more), "n2") == "lemon"


# --- GPUs that are moved ---------------------------------------------------------------------------

BAD, GOOD, THIRD = gpu(1, "s1"), gpu(2, "s2"), gpu(3, "s3")


def test_a_gpu_takes_its_history_along() -> None:
    faults = (*ended(9, "n1", BAD), *ended(6, "n1", BAD), *ended(4, "n1", BAD))
    before = (health("n1", NOW - 10 * DAY, BAD), health("n2", NOW - 10 * DAY, GOOD))
    assert standing(judged(*faults, *before), "n1") == "lemon"
    swapped = (health("n1", NOW - DAY, GOOD), health("n2", NOW - DAY, BAD))
    found = judged(*faults, *before, *swapped)
    assert [one.node for one in found.nodes] == ["n2"]
    assert of(found, "n2").reasons[0].part == "serial s1"
    # what n1 has said of it is no more than one node may say of another: by itself it makes no lemon
    assert standing(found, "n2") == "watch"
    again = [each for at in (NOW - 1.5 * DAY, NOW - DAY / 4) for each in (fault("n2", at, BAD), over(fault("n2", at, BAD), at + 9))]  # fmt: skip
    assert standing(judged(*faults, *before, *swapped, *again), "n2") == "lemon"
    assert standing(judged(*before, *swapped, *again), "n2") == "watch"


def test_a_gpu_that_was_taken_out_speaks_against_no_node_and_is_named() -> None:
    faults = (*ended(9, "n1", BAD), *ended(6, "n1", BAD), *ended(4, "n1", BAD))
    new = msgspec.structs.replace(GOOD, index=BAD.index)
    found = judged(*faults, health("n1", NOW - 10 * DAY, BAD), health("n1", NOW - DAY, new))
    assert found.nodes == ()
    assert found.stray_gpus == ("serial s1",)


def test_a_node_that_invents_gpus_makes_no_answer_longer_than_people_read() -> None:
    parts = [msgspec.structs.replace(BAD, uuid=f"GPU-x{n}", serial=f"x{n}") for n in range(3 * MOST_STRAY)]  # fmt: skip
    faults = [each for one in parts for each in ended(9, "n1", one)]
    in_its_place = msgspec.structs.replace(GOOD, index=BAD.index)
    found = judged(*faults, health("n1", NOW - DAY, in_its_place))
    assert len(found.stray_gpus) <= MOST_STRAY + 1
    assert found.stray_gpus[-1].endswith(" more")


def test_a_gpu_that_has_fallen_off_the_bus_is_still_in_its_node() -> None:
    two = (BAD, THIRD)
    found = judged(health("n1", NOW - 9, *two), fault("n1", NOW - 5, BAD), health("n1", NOW - 1, THIRD))  # fmt: skip
    assert standing(found, "n1") == "ill"


def test_a_fault_without_a_serial_number_belongs_to_the_gpu_of_that_uuid() -> None:
    dead = gpu(1)  # it does not tell its serial number any more
    events = (health("n1", NOW - 9 * DAY, BAD), *ended(5, "n1", dead), health("n2", NOW - 1, BAD))
    assert [one.node for one in judged(*events).nodes] == ["n2"]


def test_the_history_of_the_node_itself_stays_with_it() -> None:
    found = judged(*ended(2, "n1"), health("n1", NOW - 9 * DAY, BAD), health("n2", NOW - 1, BAD))
    assert [one.node for one in found.nodes] == ["n1"]


def test_the_list_says_why() -> None:
    lines = list(lemon_lines(judged(*ended(1), *ended(3), *ended(5), incident(blamed="n1"))))
    assert lines[0] == "n1: lemon, score 3.59 of 4 pieces of evidence"
    assert lines[1] == "   1.00  2026-11-21  GPU 3 has fallen off the bus, report i1"
    assert len(lines) == 5


def test_nodes_are_folded_as_slurm_takes_them() -> None:
    events = [each for node in ("gpu001", "gpu002", "gpu004") for each in (fault(node),)]
    assert slurm_exclude(judged(*events)) == "gpu[001-002,004]"
    assert slurm_exclude(judged()) == ""
