"""Trace rings: read as they were written, whatever stands in them; shown, exported and compared."""

import json
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mldebug.capture.trace import layout
from mldebug.capture.trace.export import chrome, speedscope
from mldebug.capture.trace.layout import parse_header, parse_names
from mldebug.capture.trace.line_format import lines
from mldebug.capture.trace.merge import merge, numbered
from mldebug.capture.trace.merge_text import merged_lines
from mldebug.capture.trace.open_files import open_ring
from mldebug.capture.trace.reader import MOST_CHUNKS, Read, read_ends, read_last, read_whole
from mldebug.capture.trace.records import ListedEvents, Ring, RingHeader, TraceEventKind
from mldebug.capture.trace.spans import edges
from mldebug.capture.trace.verbs import tree_lines
from mldebug.cli.main import main
from mldebug_training.tracing import ring as written
from shared.capture import rings
from shared.capture.rings import LINE, RETURN, Chunk, Rec, function_id

EVENTED = {
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "number"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"},
                            "file": {"type": "string"},
                            "line": {"type": "number"},
                            "col": {"type": "number"},
                        },
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "name", "unit", "startValue", "endValue", "events"],
                "properties": {
                    "type": {"const": "evented"},
                    "name": {"type": "string"},
                    "unit": {"const": "nanoseconds"},
                    "startValue": {"type": "number"},
                    "endValue": {"type": "number"},
                    "events": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "frame", "at"],
                            "additionalProperties": False,
                            "properties": {
                                "type": {"enum": ["O", "C"]},
                                "frame": {"type": "integer", "minimum": 0},
                                "at": {"type": "number"},
                            },
                        },
                    },
                },
            },
        },
    },
}
"""What speedscope's own description of its format asks of a file with evented profiles."""


def reader(data: bytes) -> Read:
    return lambda at, size: data[at : at + size]


def heads_of(data: bytes) -> Callable[[RingHeader], bytes]:
    def heads(header: RingHeader) -> bytes:
        places = range(
            header.chunks_at,
            header.chunks_at + header.chunks * header.chunk_size,
            header.chunk_size,
        )
        return b"".join(data[at : at + 64] for at in places)

    return heads


def read(data: bytes, last: int | None = None) -> Ring:
    return taken(read_whole(reader(data)) if last is None else read_last(reader(data), last))


def taken(ring: Ring) -> Ring:
    """The same in memory."""
    return msgspec.structs.replace(ring, events=ListedEvents(ring.events))


def shown(ring: Ring) -> list[str]:
    return list(lines(ring, ring.events, lambda path, line: f"    text of {line}"))


# --- what is written is read -----------------------------------------------------------------------


def test_records_come_in_order_with_their_names_and_steps() -> None:
    ring = read(rings.ring(rings.steps(1, 3)))
    assert [event.at for event in ring.events] == sorted(event.at for event in ring.events)
    assert {event.step for event in ring.events} == {1, 2, 3}
    last = ring.events[-1]
    assert (last.place.function, last.place.path, last.place.module) == (
        "load",
        "/job/data.py",
        "data",
    )
    assert (last.kind, last.line, last.depth, last.step) == (TraceEventKind.LINE, 9, 2, 3)
    assert (ring.header.rank, ring.header.engine, ring.header.state) == (
        0,
        "monitoring, python",
        "tracing",
    )


def test_the_tail_is_the_end_of_the_whole() -> None:
    data = rings.ring(rings.steps(1, 30))
    whole = read(data).events
    for count in (1, 7, 50, 1000):
        assert read(data, count).events == whole[-count:]


def test_a_stuck_thread_is_not_pushed_out_of_what_a_capture_reads() -> None:
    stuck = Chunk(1, 10, [Rec(1, function_id(1), 9, 0, LINE)])
    busy = [
        Chunk(
            n,
            11,
            [Rec(100 * n, function_id(2))],
            began=100 * n,
            before=n - 1 if n > 2 else 0,
            main=0,
        )
        for n in range(2, 40)
    ]
    data = rings.ring([stuck, *busy])
    ring = read_ends(reader(data), 10, heads_of(data))
    assert [event.place.function for event in ring.events] == ["load", "all_reduce"]
    assert ring.threads[11].cut


def test_records_that_are_not_whole_do_not_count() -> None:
    rows = [
        Rec(1, function_id(0)),
        Rec(2, function_id(1), mark=0),
        Rec(3, function_id(2), mark=6),
        Rec(4, function_id(1)),
    ]
    ring = read(rings.ring([Chunk(7, 1, rows)]))
    assert [event.at for event in ring.events] == [1, 4]


def test_a_chunk_that_changes_hands_while_it_is_read_does_not_count() -> None:
    data = rings.ring([Chunk(1, 1, [Rec(1, function_id(0))])])
    changed = bytearray(data)
    struct.pack_into("<I", changed, rings.CHUNKS_AT, 9)
    reads: list[int] = []

    def torn(at: int, size: int) -> bytes:
        reads.append(at)
        return bytes(changed if reads.count(rings.CHUNKS_AT) > 2 else data)[at : at + size]

    assert taken(read_whole(torn)).events == ()


# --- nothing in it is believed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "form", "value", "why"),
    [
        (0, "8s", b"mltrace\x02", "version 2"),
        (0, "8s", b"notaring", "does not begin"),
        (0, "8s", bytes(8), "only being made"),
        (8, "<I", 1, "header has 1 bytes"),
        (12, "<I", 32, "records 32"),
        (16, "<Q", 5000, "do not fit"),
        (24, "<Q", 0, "do not fit"),
        (32, "<Q", 1 << 60, "do not fit"),
        (40, "<Q", 4096, "do not fit"),
        (48, "<I", 0, "do not fit"),
        (48, "<I", 0xFFFFFFFF, "do not fit"),
        (52, "<I", 0xFFFFFFFF, "do not fit"),
    ],
)
def test_a_header_that_cannot_be_is_refused(at: int, form: str, value: object, why: str) -> None:
    data = rings.header(4)
    struct.pack_into(form, data, at, value)
    with pytest.raises(ValueError, match=why):
        parse_header(bytes(data))


def test_names_that_point_forward_or_never_end_stop_the_walk() -> None:
    loop = struct.pack("<IIII", 1, 1, 0, 0)  # a function whose file is itself
    found, _ = parse_names(loop + struct.pack("<IIII", 2, 1, 900, 1 << 31))
    assert found[0].path == ""
    assert list(found) == [0]
    endless = b"".join(struct.pack("<IIII", n + 1, 0, 0xFFFFFFFF, 0) for n in range(300_000))
    assert "broken" in parse_names(endless)[1]


@given(st.binary(max_size=600), st.integers(0, 16384))
@settings(max_examples=60, deadline=None)
@example(b"\xff" * 600, rings.CHUNKS_AT)
def test_whatever_is_written_over_a_ring_it_is_read_or_refused(noise: bytes, at: int) -> None:
    data = bytearray(rings.ring(rings.steps(1, 3)))
    place = at % len(data)
    data[place : place + len(noise)] = noise
    try:
        ring = read(bytes(data))
    except ValueError:
        return
    for text in (*shown(ring), *tree_lines(ring), *merged_lines(merge({0: ring, 1: ring}))):
        assert text.isprintable() or text == ""
    json.loads(b"".join(chrome([ring])))
    _balanced(json.loads(b"".join(speedscope([ring]))))


@given(st.integers(0, 90_000))
@settings(max_examples=60, deadline=None)
def test_a_ring_may_be_cut_anywhere(size: int) -> None:
    data = rings.ring(rings.steps(1, 3))[:size]
    try:
        read(data)
    except ValueError:
        assert size < 4096


def test_terminal_escapes_and_secrets_of_a_job_are_not_shown() -> None:
    functions = (("f\x1b[31m\n", "/job/\x1b]0;x\x07a.py", "m", 1),)
    ring = read(rings.ring([Chunk(1, 1, [Rec(1, function_id(0), 3, 0, LINE)])], functions))
    text = "\n".join(lines(ring, ring.events, lambda *_: "api_key = 'sk-abcdefghijklmnopqrstuvwx'"))
    assert "\x1b" not in text
    assert "abcdefghij" not in text


# --- shown -----------------------------------------------------------------------------------------


def test_lines_are_nicertraces_with_frame_changes_marked() -> None:
    assert shown(read(rings.ring(rings.steps(1, 1))))[:8] == [
        "--- thread 4711 (MainThread), step 1 ---",
        "        train:40 train_step",
        "0:00:00.000 train.py:    41:     text of 41",
        "        data:7 load",
        "0:00:00.000 data.py:     9:     text of 9",
    ]


def test_back_in_the_caller_the_frame_is_named_again() -> None:
    rows = [
        Rec(1, function_id(0), 1, 1, LINE),
        Rec(2, function_id(1), 7, 2, LINE),
        Rec(3, function_id(0), 2, 1, LINE),
    ]
    state = shown(read(rings.ring([Chunk(1, 1, rows)])))
    assert [line.strip() for line in state if line.startswith("        ")] == [
        "data:7 load",
        "train:40 train_step",
    ]


def test_the_tree_counts_calls_and_marks_what_has_not_returned() -> None:
    tree = [" ".join(line.split()) for line in tree_lines(read(rings.ring(rings.steps(1, 3))))]
    assert any("3 x * train:40 train_step" in line for line in tree)
    assert any("3 x * data:7 load" in line for line in tree)
    assert any("2 x comm:3 all_reduce" in line for line in tree)


def test_a_frame_that_was_entered_before_the_ring_begins_is_open_from_its_start() -> None:
    rows = [Rec(5, function_id(1), 8, 1, RETURN), Rec(9, function_id(0), 44, 0, RETURN)]
    some = dict(edges(read(rings.ring([Chunk(1, 1, rows)])).events, [1]))[1]
    assert [(edge.opens, edge.place.function, edge.at) for edge in some] == [
        (True, "train_step", 5),
        (True, "load", 5),
        (False, "load", 5),
        (False, "train_step", 9),
    ]


# --- exported --------------------------------------------------------------------------------------


def _balanced(table: dict[str, object]) -> None:
    jsonschema.validate(table, EVENTED)
    for profile in table["profiles"]:  # type: ignore[attr-defined]
        open_: list[int] = []
        at = 0
        for event in profile["events"]:
            assert event["at"] >= at
            at = event["at"]
            if event["type"] == "O":
                open_.append(event["frame"])
            else:
                assert open_.pop() == event["frame"]
        assert not open_
        assert profile["endValue"] >= at


def test_speedscope_is_balanced_and_obeys_its_format() -> None:
    answer = json.loads(b"".join(speedscope([read(rings.ring(rings.steps(1, 4)))])))
    _balanced(answer)
    assert {frame["name"] for frame in answer["shared"]["frames"]} == {
        "train_step",
        "load",
        "all_reduce",
    }


def test_chrome_slices_nest_and_what_has_not_returned_stays_open() -> None:
    traceevents = json.loads(b"".join(chrome([read(rings.ring(rings.steps(1, 2)))])))["traceEvents"]
    begun = [one for one in traceevents if one["ph"] == "B"]
    ended = [one for one in traceevents if one["ph"] == "E"]
    assert [one["name"] for one in begun].count("train_step") == 2
    assert len(begun) - len(ended) == 2  # the last train_step, and load in it
    assert all({"pid", "tid", "ts"} <= set(one) for one in (*begun, *ended))
    assert [one["args"]["name"] for one in traceevents if one.get("name") == "process_name"] == [
        "rank 0 (pid 4711 on gpu-17)"
    ]
    assert (
        min(one["ts"] for one in begun) * 1000 > rings.WALL
    )  # unix time, so that ranks can be laid side by side


# --- large, and written meanwhile ------------------------------------------------------------------


# --- large, and written meanwhile ------------------------------------------------------------------


def test_a_large_ring_takes_no_more_memory_than_a_chunk_of_each_thread(tmp_path: Path) -> None:
    """All of its records at once would be 300 bytes each."""
    chunks = [Chunk(number, 1, _busy(number), 0, number * 1000) for number in range(1, 301)]
    place = tmp_path / "ring"
    place.write_bytes(rings.ring(chunks))
    with open_ring(place) as pieces:
        assert len(read_whole(pieces).events) == 300 * rings.FIT
        tracemalloc.start()
        try:
            for form in (chrome, speedscope):
                assert sum(map(len, form([read_whole(pieces)]))) > 300 * rings.FIT * 30
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 3 << 20


def _busy(number: int) -> list[Rec]:
    times = range(number * 1000, number * 1000 + rings.FIT)
    return [Rec(at, function_id(1), 7, 1, RETURN if at % 2 else rings.CALL) for at in times]


def test_a_ring_that_is_written_while_it_is_exported_still_nests() -> None:
    """What was open at the beginning is looked for first; then the oldest chunks are another thread's."""
    old = [Rec(5, function_id(1), 8, 1, RETURN), Rec(9, function_id(0), 44, 0, RETURN)]
    new = [Rec(20, function_id(0)), Rec(30, function_id(1), 0, 1)]
    before = rings.ring([Chunk(1, 1, old), Chunk(2, 1, new)])
    after = rings.ring([Chunk(3, 2, old), Chunk(2, 1, new)])
    for switch in range(2, 30):
        data = iter([before] * switch)
        ring = read_whole(lambda at, size, data=data: next(data, after)[at : at + size])
        _balanced(json.loads(b"".join(speedscope([ring]))))


# --- compared --------------------------------------------------------------------------------------


def test_merge_names_the_rank_that_went_another_way() -> None:
    some = [read(rings.ring(rings.steps(1, 5, stuck_in=2), rank=rank)) for rank in (0, 1, 3)]
    odd = read(rings.ring(rings.steps(1, 5, stuck_in=1), rank=2))
    merged = merge(numbered([*some, odd]))
    assert merged.parting is not None
    assert (merged.parting.step, merged.parting.equal) == (5, 3)
    text = "\n".join(merged_lines(merged))
    assert "ranks 0-1,3: go on with return from data:7 load" in text
    assert "rank 2: goes on with line 9 of data:7 load" in text


def _one_step(records: list[Rec], rank: int) -> Ring:
    return read(rings.ring([Chunk(1, 1, records, 7)], rank=rank))


STEP, LOAD = function_id(0), function_id(1)
ENTERED = [Rec(1, STEP, 40), Rec(2, LOAD, 7, 1)]
LEFT_IT = Rec(3, LOAD, 9, 1, RETURN)


def test_a_rank_that_never_left_a_function_parts_from_those_that_did() -> None:
    """All have made the same calls: only their returns tell them apart."""
    some = {rank: _one_step([*ENTERED, LEFT_IT], rank) for rank in (0, 1, 3)}
    merged = merge({**some, 2: _one_step(ENTERED, 2)})
    assert merged.parting is not None
    assert (merged.parting.equal, merged.by) == (2, "calls")
    text = "\n".join(merged_lines(merged))
    assert "after 2 calls and returns that are the same" in text
    assert "ranks 0-1,3: go on with return from data:7 load" in text
    assert "rank 2: has not come further, inside data:7 load" in text
    stuck = {rank: _one_step(ENTERED, rank) for rank in range(4)}
    assert merge(stuck).parting is None


def test_an_exception_is_another_way_out_than_a_return() -> None:
    raised = LEFT_IT._replace(kind=rings.UNWIND)
    merged = merge({0: _one_step([*ENTERED, LEFT_IT], 0), 1: _one_step([*ENTERED, raised], 1)})
    text = "\n".join(merged_lines(merged))
    assert "rank 1: goes on with return from data:7 load by an exception" in text


def test_lines_are_compared_where_every_rank_has_traced_them() -> None:
    lined = [Rec(3, LOAD, 8, 2, LINE), Rec(4, LOAD, 9, 2, LINE)]
    ahead, behind = _one_step([*ENTERED, *lined], 0), _one_step([*ENTERED, lined[0]], 1)
    merged = merge({0: ahead, 1: behind})
    assert merged.by == "both"
    text = "\n".join(merged_lines(merged))
    assert "rank 0: goes on with line 9 of data:7 load" in text
    assert "rank 1: has not come further, inside data:7 load" in text
    calls_alone = _one_step(ENTERED, 1)
    assert merge({0: ahead, 1: calls_alone}).parting is None
    only_lines = merge({0: _one_step(lined, 0), 1: _one_step(lined[:1], 1)})
    assert only_lines.by == "lines"
    assert "rank 1: has not come further" in "\n".join(merged_lines(only_lines))


def test_a_worker_and_an_earlier_attempt_are_no_ranks_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have the rank of the trainer, and their names may come first in the folder."""
    some = {
        "a": rings.ring(
            rings.steps(1, 5, stuck_in=2), rank=1, pid=10, child=1, wall=rings.WALL + 9
        ),
        "b": rings.ring(rings.steps(1, 4), rank=0, pid=11),
        "c": rings.ring(rings.steps(1, 2, stuck_in=2), rank=1, pid=12, wall=rings.WALL - 9),
        "d": rings.ring(rings.steps(1, 4), rank=1, pid=13),
    }
    for name, data in some.items():
        (tmp_path / name).write_bytes(data)
    assert main(["trace", "merge", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(one["rank"], one["pid"]) for one in answer["ranks"]] == [(0, 11), (1, 13)]
    assert answer["parting"] is None
    assert main(["trace", "merge", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "left out: child of rank 1 (pid 10 on gpu-17)" in out
    assert "left out: rank 1 (pid 12 on gpu-17)" in out


def test_merge_says_that_nobody_parted_and_that_nothing_can_be_compared() -> None:
    same = [read(rings.ring(rings.steps(2, 5), rank=rank)) for rank in (0, 1)]
    assert "No rank parted" in "\n".join(merged_lines(merge(numbered(same))))
    apart = [
        read(rings.ring(rings.steps(1, 2), rank=0)),
        read(rings.ring(rings.steps(8, 9), rank=1)),
    ]
    assert "Nothing can be compared" in "\n".join(merged_lines(merge(numbered(apart))))


def test_a_step_whose_beginning_was_overwritten_is_not_compared() -> None:
    chunks = rings.steps(4, 6)
    cut = [chunks[0]._replace(before=2, records=chunks[0].records[3:]), *chunks[1:]]
    whole = read(rings.ring(rings.steps(4, 6), rank=1))
    merged = merge({0: read(rings.ring(cut)), 1: whole})
    assert 4 not in merged.compared
    assert merged.parting is None


# --- the commands ----------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "ring"
    place.write_bytes(rings.ring(rings.steps(1, 3)))
    return place


def test_show_prints_the_end(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "show", str(file), "--tail", "2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "rank 0 (pid 4711 on gpu-17)"
    assert "        data:7 load" in out
    assert main(["trace", "show", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["events"][-1]["function"] == "load"
    assert main(["trace", "show", str(file), "--tree"]) == 0
    assert "train:40 train_step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "why"), [(None, "there is no trace ring"), (b"x" * 5000, "it is no trace ring")]
)
def test_a_file_that_is_none_is_told_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, why: str
) -> None:
    place = tmp_path / "other"
    if content is not None:
        place.write_bytes(content)
    assert main(["trace", "show", str(place)]) == 2
    err = capsys.readouterr().err
    assert why in err
    assert "way out" in err
    assert main(["trace", "show", "/dev/null"]) == 2
    assert "no regular file" in capsys.readouterr().err


def test_export_writes_once_and_by_the_name(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.speedscope.json"
    assert main(["trace", "export", str(file), "-o", str(out)]) == 0
    _balanced(json.loads(out.read_text()))
    assert main(["trace", "export", str(file), "-o", str(out)]) == 2
    assert (
        main(["trace", "export", str(file), "-o", str(out), "--force", "--format", "chrome"]) == 0
    )
    assert "traceEvents" in json.loads(out.read_text())


def test_export_never_empties_a_ring(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its process may still write it, and would die of SIGBUS."""
    before = file.read_bytes()
    assert main(["trace", "export", str(file), "-o", str(file), "--force"]) == 2
    assert "is itself a trace ring" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_merge_reads_a_folder_and_skips_what_is_no_ring(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "note.txt").write_text("no ring")
    (tmp_path / "other").write_bytes(rings.ring(rings.steps(1, 3, stuck_in=2), rank=1))
    (tmp_path / "ring.before").write_bytes(rings.ring(rings.steps(1, 2, stuck_in=1)))
    assert main(["trace", "merge", str(tmp_path)]) == 0
    assert "They parted in step 3" in capsys.readouterr().out
    assert main(["trace", "merge", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parting"]["step"] == 3


def test_the_script_itself_is_called_by_its_file() -> None:
    functions = (("main", "/job/train.py", "__main__", 9), ("f", "", "__main__", 1))
    rows = [Rec(1, function_id(0)), Rec(2, function_id(1), 0, 1)]
    state = shown(read(rings.ring([Chunk(1, 1, rows)], functions)))
    assert state[1:] == ["        train.py:9 main", "        __main__:1 f"]


# --- both sides --------------------------------------------------------------------------------------

TRACED = """
import os, sys, time
from mldebug_training.tracing.trace import trace

def load(n):
    if n == 3:
        print(tracer.path, flush=True)
        os.kill(os.getpid(), 9)

def train_step(n):
    load(n)

tracer = trace("__main__", lines=True, ring=sys.argv[1], size=1 << 20, native=False)
tracer.begin()
for n in range(1, 4):
    tracer.step(n)
    train_step(n)
"""


def test_what_the_tracer_writes_is_what_is_read(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(TRACED)
    place = tmp_path / "ring"
    done = subprocess.run(
        [sys.executable, str(script), str(place)], capture_output=True, text=True, timeout=60, check=False,
        env={"PYTHONPATH": str(Path(written.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    data = Path(done.stdout.strip()).read_bytes()
    ring = read(data)
    header = ring.header
    assert (header.state, header.traced, header.step) == ("tracing", "calls and lines", 3)
    assert header.pid == next(iter(ring.threads))
    assert header.followed.startswith("include=__main__")
    last = ring.events[-1]
    assert (last.place.function, last.place.path, last.step) == ("load", str(script), 3)
    assert TRACED.splitlines()[last.line - 1].strip().startswith("os.kill")
    steps = [
        event
        for event in ring.events
        if event.place.function == "train_step" and event.kind is TraceEventKind.CALL
    ]
    assert [event.step for event in steps[1:]] == [2, 3]
    text = "\n".join(tree_lines(ring))
    assert "3 x * job.py:10 train_step" in " ".join(text.split())


def test_both_sides_have_the_same_sizes_and_numbers() -> None:
    kinds = {
        TraceEventKind.CALL: written.CALL, TraceEventKind.RETURN: written.RETURN, TraceEventKind.LINE: written.LINE,
        TraceEventKind.UNWIND: written.UNWIND, TraceEventKind.YIELD: written.YIELD, TraceEventKind.RESUME: written.RESUME,
    }  # fmt: skip
    assert {number: kind for kind, number in kinds.items()} == layout.KINDS
    assert (layout.STEP, layout.PREFIX, layout.NO_FILE) == (
        written.STEP_KIND,
        written.PREFIX,
        written.NO_FILE,
    )
    assert layout.MAGIC + bytes([layout.VERSION]) == written.MAGIC
    sizes = (written.HEADER_SIZE, written.CHUNK_HEAD_SIZE, written.RECORD.size)
    assert sizes == (layout.HEADER_SIZE, layout.HEAD_SIZE, layout.RECORD_SIZE)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.sampled_from([0, 6, 7])), max_size=20))
@settings(max_examples=40, deadline=None)
def test_the_quick_look_at_a_chunk_sees_what_the_slow_one_does(rows: list[tuple[int, int]]) -> None:
    data = rings.chunk(Chunk(7, 1, [Rec(at, 1, mark=mark) for at, mark in rows]))
    slow = max((record.at for record in layout.parse_records(data, 7)), default=None)
    assert layout.newest_time(data, 7) == slow


def test_the_quick_look_takes_each_threads_last_chunk() -> None:
    chunks = [Chunk(5, 1, []), None, Chunk(9, 2, []), Chunk(3, 1, []), Chunk(2, 2, [])]
    heads = b"".join(rings.chunk(one)[:64] for one in chunks)
    assert layout.last_chunks(heads + b"cut") == [(2, 9), (0, 5)]


def test_chunks_of_a_megabyte_take_no_more_than_those_that_are_written() -> None:
    """Of 64 threads, each with a chunk full of records: 764 MiB and twelve seconds of a capture, for each rank."""
    size, read_bytes = 1 << 20, 0
    header = bytearray(rings.ring([])[:4096])
    struct.pack_into("<QQQQII", header, 16, 4096 + 64 * size, 4096, 0, 4096, size, 64)
    heads = [struct.pack("<IIQqQII24s", n, n, 0, 1, n, 0, 1, b"x") for n in range(1, 65)]

    def read(at: int, wanted: int) -> bytes:
        nonlocal read_bytes
        read_bytes += wanted
        number, within = divmod(at - 4096, size)
        data = bytes(header) if at < 4096 else heads[number] if not within else b""
        return data[:wanted].ljust(wanted, b"\0")

    whole = read_ends(read, 100, lambda _: b"".join(heads))
    assert len(whole.threads) == 64
    assert read_bytes < MOST_CHUNKS + 65_536
