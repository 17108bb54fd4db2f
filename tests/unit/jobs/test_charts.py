"""Steps in files for charts: real files of TensorBoard's and wandb's writers, tables of Lightning, in any chunks."""

import random
import struct
from pathlib import Path

import pytest

from mldebug.jobs.logs.charts.chart_parser import FileParser
from mldebug.jobs.logs.charts.csv_table import CsvParser
from mldebug.jobs.logs.charts.json_lines import JsonLinesParser
from mldebug.jobs.logs.charts.kinds import PARSERS, event_kind
from mldebug.jobs.logs.charts.protobuf import fields
from mldebug.jobs.logs.charts.tensorboard import TfEventsParser, masked_crc
from mldebug.jobs.logs.charts.wandb import WandbParser
from mldebug.jobs.logs.records import LogRecord

CHARTS = Path(__file__).parents[2] / "fixtures/charts"
TENSORBOARD = (CHARTS / "tensorboard.bin").read_bytes()
WANDB = (CHARTS / "wandb.bin").read_bytes()
# Lightning's, where the evaluation shares a column with the training
LIGHTNING = b"epoch,lr,step,train_loss_step,val_loss\n" + b"".join(
    f"0,,{step},{2 - step / 100},\n0,,{step},,1.5\n".encode() for step in range(9, 100, 10)
)
JSON_LINES = b"".join(
    f'{{"step": {step}, "loss": {2 - step / 100}, "lr": 1e-05}}\n{{"step": {step}, "eval_loss": 1.5}}\n'.encode()
    for step in range(9, 100, 10)
)


def fed(parser: FileParser, data: bytes, size: int) -> list[LogRecord]:
    return [r for at in range(0, len(data), size) for r in parser.feed(data[at : at + size])]


def steps(records: list[LogRecord]) -> list[int | None]:
    return list(dict.fromkeys(record.step for record in records))


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize(
    ("kind", "data", "wanted"),
    [
        ("tensorboard", TENSORBOARD, list(range(0, 200, 10))),
        ("wandb", WANDB, list(range(40))),
        ("csv", LIGHTNING, list(range(9, 100, 10))),
        ("jsonl", JSON_LINES, list(range(9, 100, 10))),
    ],
)
def test_the_steps_of_a_real_file_in_any_chunks(
    kind: str, data: bytes, wanted: list[int], size: int
) -> None:
    """What an evaluation or the machine's own statistics count beside them is none."""
    found = fed(PARSERS[kind](), data, size)
    assert steps(found) == wanted
    assert found[0].loss is not None


@pytest.mark.parametrize(
    ("kind", "data", "tells"),
    [("tensorboard", TENSORBOARD, True), ("wandb", WANDB, True), ("csv", LIGHTNING, False)],
)
def test_a_record_holds_the_time_at_which_it_was_made(kind: str, data: bytes, tells: bool) -> None:
    times = [record.written_at for record in fed(PARSERS[kind](), data, 1 << 20)]
    known = [at for at in times if at is not None]
    assert len(known) == (len(times) if tells else 0)
    assert known == sorted(known)
    assert all(1.6e9 < at < 2.5e9 for at in known)


@pytest.mark.parametrize("at", [2000, 1001, 1])
def test_who_comes_late_finds_the_next_record_of_tensorboard(at: int) -> None:
    parser = TfEventsParser()
    parser.resync(at)
    found = steps(fed(parser, TENSORBOARD[at:], 64))
    every = list(range(0, 200, 10))
    assert found
    assert found == every[-len(found) :]


def _blocks(records: list[bytes]) -> bytes:
    """Records in LevelDB's log format: cut where a block of 32 KiB ends."""
    data = bytearray(WANDB[:7])
    for record in records:
        rest, first = record, True
        while rest or first:
            left = 32_768 - len(data) % 32_768
            if left < 7:
                data += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if not rest else 2) if first else (4 if not rest else 3)
            data += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return bytes(data)


def _history(step: int) -> bytes:
    item = bytes((10, 4)) + b"loss" + bytes((0x82, 1, 3)) + b"1.5"
    body = bytes((10, len(item))) + item + bytes((18, 2, 8, step))
    return bytes((18, len(body))) + body


def test_records_of_wandb_go_over_the_ends_of_blocks_and_a_late_reader_begins_at_one() -> None:
    output = bytes((34, 0x80, 0x80, 4)) + bytes(65_536)  # what the job printed
    data = _blocks([one for step in range(1, 100) for one in (_history(step), output)])
    assert steps(fed(WandbParser(), data, 5000)) == list(range(1, 100))
    late = WandbParser()
    late.resync(len(data) // 2)
    found = steps(fed(late, data[len(data) // 2 :], 5000))
    assert found == list(range(100 - len(found), 100))
    assert len(found) > 40


def test_a_table_that_begins_in_the_middle_tells_nothing() -> None:
    parser = CsvParser()
    parser.resync(4096)
    assert fed(parser, LIGHTNING, 50) == []


def test_a_table_written_anew_with_one_more_column_is_read_anew() -> None:
    parser = CsvParser()
    assert steps(fed(parser, b"step,train_loss\n1,2.0\n", 99)) == [1]
    parser.restart()
    assert steps(fed(parser, b"train_loss,lr,step\n2.0,1,1\n1.9,1,2\n", 99)) == [1, 2]


def test_a_long_record_is_passed_over_and_what_comes_behind_it_is_read() -> None:
    parser = TfEventsParser()
    big = _frame(bytes(2 << 20))
    half = TENSORBOARD[: len(TENSORBOARD)]
    found = fed(parser, half + big + half, 1 << 16)
    assert len(found) > len(steps(found)) == 20
    assert parser.oversized == 1


def _frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + bytes(4)


@pytest.mark.parametrize("kind", sorted(PARSERS))
def test_no_content_raises_or_makes_it_hold_more_than_a_record(kind: str) -> None:
    chance = random.Random(7)
    data = {"tensorboard": TENSORBOARD, "wandb": WANDB, "csv": LIGHTNING, "jsonl": JSON_LINES}[kind]
    for _ in range(300):
        torn = bytearray(data)
        for _ in range(chance.randrange(1, 30)):
            torn[chance.randrange(len(torn))] = chance.randrange(256)
        start = chance.randrange(len(torn))
        parser = PARSERS[kind]()
        if start % 2:
            parser.resync(start)
        fed(parser, bytes(torn[start:]), 997)
        assert parser.held <= (1 << 20) + 997


@pytest.mark.parametrize(
    "message", [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x7f", b"\x00", b"\x0b\x0c", b"\x0d\x01"]
)
def test_what_is_no_message_has_no_fields(message: bytes) -> None:
    assert list(fields(message)) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("events.out.tfevents.1700000000.n1.77.0", "tensorboard"),
        ("run-abc.wandb", "wandb"),
        ("metrics.csv", "csv"),
        ("trainer_log.jsonl", "jsonl"),
        ("metrics.jsonl", "jsonl"),
        ("train_metrics.jsonl", "jsonl"),
        ("log_history.jsonl", "jsonl"),
        ("scalars.json", "jsonl"),
        ("20240102_030405.log.json", "jsonl"),
        ("train.jsonl", ""),
        ("catalog.jsonl", ""),
        ("dialogs.jsonl", ""),
        ("trainer_state.json", ""),
        ("config.json", ""),
        ("data.csv", ""),
        ("train.py", ""),
    ],
)
def test_a_file_is_known_by_its_name(name: str, kind: str) -> None:
    assert event_kind(name) == kind


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('{"current_steps": 5, "total_steps": 300, "loss": 1.5, "lr": 1e-05, "epoch": 0.1}', (5, 300, 1.5)),
        ('{"step": 7, "train": {"loss": 2.5, "lr": 0.1}}', (7, None, 2.5)),
        ('{"mode": "train", "epoch": 1, "iter": 50, "lr": 0.01, "loss": 3.5}', (50, None, 3.5)),
        ('{"global_step": 20, "step": 2, "train/loss": 1.25}', (20, None, 1.25)),
        ('{"epoch": 3, "train_loss": 1.25}', None),
        ('{"step": 20, "eval/loss": 1.25}', None),
        ('{"step": -1, "loss": 1.25}', None),
        ('{"step": 2.5, "loss": 1.25}', None),
        ('{"step": true, "loss": 1.25}', None),
        ('{"prompt": "step 5, loss 2", "answer": "x"}', None),
        ("[1, 2]", None),
        ("step 5 loss 2.0", None),
        ('{"step": 1e400, "loss": 1}', None),
        ("[" * 20_000, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 10, 1 << 20])
def test_json_lines(line: str, wanted: tuple[int, int | None, float] | None, size: int) -> None:
    found = fed(JsonLinesParser(), f"{line}\n".encode(), size if len(line) < 1000 else 1 << 20)
    assert [(one.step, one.total, one.loss) for one in found] == ([wanted] if wanted else [])


def test_json_lines_go_on_where_bytes_were_left_out_and_below_a_line_too_long() -> None:
    parser = JsonLinesParser()
    parser.resync(1000)
    assert fed(parser, b'tep": 4, "loss": 1}\n{"step": 5, "loss": 1.5}\n', 7)[0].step == 5
    assert (
        fed(parser, b'{"x": "' + b"y" * 200_000 + b'"}\n{"step": 6, "loss": 1.5}\n', 4096)[0].step
        == 6
    )
    assert parser.held == 0
