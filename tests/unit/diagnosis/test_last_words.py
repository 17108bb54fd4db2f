"""Last words as the field writes them, with the answer fixed before they were tried: no play of any case gives a wrong name."""

import msgspec
import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.words.marks import take_apart
from mldebug.diagnosis.exits.words.output import parse_error_file
from shared.diagnosis.lastwords import (
    SPEAKER,
    LastWords,
    Play,
    all_last_words,
    known_outcomes,
    outcomes_of,
    verdict_on,
)

CASES = tuple(all_last_words())


def verdicts_on(case: LastWords) -> tuple[tuple[Play, str], ...]:
    """Of each play."""
    return tuple((play, verdict_on(case, outcome)) for play, outcome in known_outcomes(case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nobody_is_named_wrongly(case: LastWords) -> None:
    found = {verdict for _, verdict in verdicts_on(case)}
    assert found <= {"right", "unknown", "low"}


@pytest.mark.parametrize("case", [one for one in CASES if one.fault == "own" and not one.accept], ids=lambda case: case.name)  # fmt: skip
def test_who_failed_by_itself_is_named_where_its_lines_are_known(case: LastWords) -> None:
    """In a log of its own, or behind torch's mark."""
    found = {verdict for play, verdict in verdicts_on(case) if play.log != "bare"}
    assert found == {"right"}


def test_names_of_cases_are_their_own() -> None:
    assert len({one.name for one in CASES}) == len(CASES)


def test_a_wrong_name_is_found() -> None:
    """The rule by which cases are judged."""
    case = LastWords(name="x", fault="own", source="own")
    outcome = next(outcome for _, outcome in outcomes_of(msgspec.structs.replace(case, exit="signal 9")))  # fmt: skip
    assert outcome.finding is not None
    assert [one.rank for one in outcome.finding.culprits] == [SPEAKER]
    victim = msgspec.structs.replace(case, fault="peer")
    assert (verdict_on(case, outcome), verdict_on(victim, outcome)) == ("right", "wrong high")
    assert verdict_on(msgspec.structs.replace(victim, accused=(SPEAKER,)), outcome) == "right"
    low = msgspec.structs.replace(outcome.finding, confidence=Confidence.LOW)
    assert verdict_on(victim, msgspec.structs.replace(outcome, finding=low)) == "low"
    nobody = ExitOutcome(kind="normal", sentence="")
    assert (verdict_on(case, nobody), verdict_on(victim, nobody)) == ("unknown", "right")


NO_REASON = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled system error, NCCL version 2.21.5"


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("n1:462:900 [1] ofi_process_cq:1205 NCCL WARN NET/OFI Request 0x7f12 completed with error. RC: 21. Error: unknown error", {"right"}),
        ("n1:462:900 [1] ib_plugin.c:1105 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<49189> with status=12", {"right"}),
        ("n1:462:900 [1] src/os/linux.cc:88 (ncclOsSocketProgressOpt) NCCL WARN ncclOsSocketProgressOpt: Call to recv from 10.0.0.3<41234> failed", {"right"}),
        # controls: another warning, and the same words without NCCL's mark
        ("n1:462:900 [1] transport/net.cc:9 NCCL WARN NET/OFI Couldn't open CQ. RC: -12, ERROR: Cannot allocate memory", {"low", "right"}),
        ("loader: request 7 completed with error", {"low", "right"}),
    ],
)  # fmt: skip
def test_nccls_warning_before_an_error_without_a_reason_says_whose_it_is(
    before: str, found: set[str]
) -> None:
    case = LastWords(name="x", fault="peer", source="own", at="all_reduce", before=before, words=NO_REASON)  # fmt: skip

    assert {verdict_on(case, outcome) for _, outcome in outcomes_of(case)} == found


def test_nccls_warning_about_a_peer_takes_no_own_error_away() -> None:
    """A device that is broken is the rank's own, whatever its connections say meanwhile."""
    before = "n1:462:900 [1] ib_plugin.c:1105 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<49189> with status=12"
    words = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    case = LastWords(name="x", fault="own", source="own", before=before, words=words)
    found = {verdict_on(case, outcome) for play, outcome in outcomes_of(case) if play.log != "bare"}

    assert found == {"right"}


DUMP = """Fatal Python error: {fault}

Thread 0x00007f10 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f20 (most recent call first):
  File "/job/model.py", line 12 in forward
  File "/job/train.py", line 88 in train_step

Extension modules: numpy.core._multiarray_umath (total: 1)"""


@pytest.mark.parametrize(
    ("fault", "exit", "says"),
    [
        ("Segmentation fault", "signal 11", "killed by SIGSEGV: Fatal Python error: Segmentation fault in forward (/job/model.py:12)"),
        ("Bus error", "signal 7", "killed by SIGBUS: Fatal Python error: Bus error in forward (/job/model.py:12)"),
        # a handler of somebody else's ended it, or a shell says so
        ("Segmentation fault", "signal 6", "killed by SIGABRT: Fatal Python error: Segmentation fault in forward"),
        ("Segmentation fault", "code 139", "exited with code 139: Fatal Python error: Segmentation fault in forward"),
        # control: an older dump, which faulthandler wrote when it was asked to
        ("Bus error", "signal 11", "rank 1 was killed by SIGSEGV; "),
    ],
)  # fmt: skip
def test_a_crash_is_told_with_the_place_where_python_stood(
    fault: str, exit: str, says: str
) -> None:
    case = LastWords(name="x", fault="own", source="own", raw=DUMP.format(fault=fault), exit=exit)
    for play, outcome in outcomes_of(case):
        if play.log == "file":
            assert says in outcome.sentence
            assert verdict_on(case, outcome) == "right"


@pytest.mark.parametrize(
    ("line", "text", "unclear"),
    [
        ("raise RuntimeError(text)", "RuntimeError: could not sync with others", True),
        ("raise RuntimeError(text)", "RuntimeError: gradient norm is inf", True),  # of all ranks
        ("raise RuntimeError(text)", "RuntimeError: local gradient norm is inf", False),
        ("loss = model(batch)", "RuntimeError: could not sync with others", False),  # native code of the job's
    ],
)  # fmt: skip
def test_an_error_file_is_judged_by_the_place_in_it(line: str, text: str, unclear: bool) -> None:
    """What torch's `@record` writes has the whole traceback."""
    stack = f'Traceback (most recent call last):\n  File "/job/train.py", line 88, in train_step\n    {line}\n{text}\n'
    content = {"message": {"message": text, "extraInfo": {"py_callstack": stack}}}
    found = parse_error_file(msgspec.json.encode(content))
    assert found is not None
    assert (found.unclear, found.blames_peer) == (unclear, False)


def test_an_answer_of_a_server_in_an_error_s_text_is_no_collector_s_line() -> None:
    """The error keeps its name and its rank, although its text ends with JSON that has a time."""
    error = 'mlflow.exceptions.RestException: 500: {"timestamp": "2026-11-26", "message": "Connection reset by peer"}'
    assert take_apart([f"[rank1]: {error}"], {}).by_rank == {1: (error,)}
    assert take_apart([error], {}).shared == (error,)
    collected = '{"log": "ValueError: bad", "time": "2026-11-26T01:02:03Z"}'
    assert take_apart([f"pod-1 {collected}"], {}).shared == ("ValueError: bad",)
