"""What a measured collective comes to: nccl-tests' formulas, spreads, tables, metrics, and values that must be right."""

import csv
import errno
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from matplotlib.figure import Figure
from prometheus_client.parser import text_string_to_metric_families

from mldebug.cli.main import main
from mldebug.core.errors import UsageError
from mldebug.probes.collective_formats import as_csv, as_textfile, row
from mldebug.probes.collectives import (
    OPS,
    CollectiveResult,
    algbw,
    busbw,
    collective_result,
    slowest,
    spread,
)
from mldebug.probes.nccl_settings import invalid_settings
from mldebug_agents.probes.inside.values import BLOCK, Stretch, Values
from mldebug_agents.probes.options import payloads
from mldebug_agents.probes.output import plot

MIB = 1 << 20


def measured(
    op: str = "all_reduce", wrong: tuple[int | None, ...] = (0, 0), size: int = 8 * MIB
) -> CollectiveResult:
    return collective_result(op, size, [[0.002, 0.001, 0.003], [0.001, 0.004, 0.002]], wrong)


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
        ("barrier", 0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, factor: float) -> None:
    """Of 8 ranks and 1 GB in 10 ms, by the page PERFORMANCE.md of nccl-tests."""
    assert busbw(op, 10**9, 0.01, 8) == pytest.approx(1e11 * factor)


@pytest.mark.parametrize(
    ("size", "microseconds", "alg", "bus"),
    [(8_388_608, 133.5, 62.82, 109.93), (17_179_869_184, 127_997, 134.22, 234.89)],
)
def test_published_lines_of_nccl_tests_are_met(
    size: int, microseconds: float, alg: float, bus: float
) -> None:
    """all_reduce_perf on 8 A100, from Stas Bekman's Machine Learning Engineering."""
    seconds = microseconds / 1e6
    assert algbw(size, seconds) / 1e9 == pytest.approx(alg, rel=5e-4)
    assert busbw("all_reduce", size, seconds, 8) / 1e9 == pytest.approx(bus, rel=5e-4)


def test_an_operation_takes_as_long_as_its_slowest_rank() -> None:
    found = measured()
    assert slowest([[1, 5], [2, 3]]) == [2, 5]
    assert found.time_seconds.min == 0.002
    assert found.time_seconds.median == 0.003
    assert found.time_seconds.max == found.time_seconds.p99 == 0.004
    assert found.algbw_bytes_per_second == pytest.approx(8 * MIB / 0.003)
    assert found.per_rank[1].time_seconds.median == 0.002


def test_the_99th_percentile_leaves_out_one_in_a_hundred() -> None:
    assert spread([1.0] * 98 + [2.0, 9.0]).p99 == 2.0
    assert spread([3.0]).p99 == 3.0


def test_one_wrong_element_on_one_rank_is_wrong_for_all() -> None:
    found = measured(wrong=(0, 1))
    assert found.correct is False
    assert [one.correct for one in found.per_rank] == [True, False]
    assert row(found).endswith("WRONG on rank 1")
    assert row(measured()).endswith("ok")
    assert measured("barrier", (None, None)).correct is None
    assert measured("reduce", (0, None)).correct is True


def test_the_csv_has_a_line_for_each_result() -> None:
    header, line = csv.reader(io.StringIO(as_csv([measured()])))
    table = dict(zip(header, line, strict=True))
    assert table["op"] == "all_reduce"
    assert float(table["median_seconds"]) == 0.003
    assert table["correct"] == "true"


def test_metrics_for_node_exporter_are_prometheus_text() -> None:
    text = as_textfile([measured(), measured("barrier", (None, None))], at=1.7e9)
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert len(families) == 6
    right = families["mldebug_probe_collective_correct"].samples
    assert [(one.labels, one.value) for one in right] == [
        ({"op": "all_reduce", "bytes": "8388608", "ranks": "2"}, 1.0)
    ]
    assert families["mldebug_probe_collective_timestamp_seconds"].samples[0].value == 1.7e9


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("NCCL_ALGO", "Rign", 1),
        ("NCCL_ALGO", "allreduce:tree,collnetdirect;broadcast:ring", 0),
        ("NCCL_ALGO", "^Ring", 0),
        ("NCCL_PROTO", "LL64", 1),
        ("NCCL_P2P_DISABLE", "yes", 1),
        ("NCCL_P2P_DISABLE", "1", 0),
        ("NCCL_NTHREADS", "0x100", 0),
        ("NCCL_NTHREADS", "0xx", 1),
        ("NCCL_NTHREADS", "", 0),
        ("NCCL_DEBUG", "INFO", 0),
        ("NCCL_SOCKET_IFNAME", "eth0", 0),
    ],
)
def test_values_that_nccl_cannot_obey_are_named(name: str, value: str, number: int) -> None:
    found = list(invalid_settings({name: value}))
    assert len(found) == number
    assert all(f"{name}={value}" in one for one in found)


def test_sizes_are_a_list_or_each_doubling() -> None:
    assert payloads("1KiB,1MiB-8MiB") == (1024, MIB, 2 * MIB, 4 * MIB, 8 * MIB)
    assert payloads("1B-3B") == (1, 2)
    for wrong in ("0B", "17GiB", "much", "5"):
        with pytest.raises(UsageError):
            payloads(wrong)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ops", "all_reduce,sum"], "there is no sum"),
        (["--sizes", "1"], "has no unit"),
        (["--sizes", "1KiB,8MiB-1MiB"], "--sizes 1MiB-8MiB"),
        (["--memory", "lots"], "--memory"),
        (["--duration", "2d"], "--duration"),
        (["--timeout", "nan"], "'nan' is no number"),
        (["--python", "/no/such/python"], "there is no such program"),
        (["--csv", "/no/such/t.csv"], "/no/such/t.csv cannot be written"),
        (["--textfile", "/no/such/t.prom"], "/no/such/t.prom cannot be written"),
    ],
)
def test_wrong_arguments_are_told_before_anything_runs(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "collectives", *words]) == 2
    assert text in capsys.readouterr().err


JOINED = (
    '{"event":"joined","ranks":2,"backend":"gloo","gpu":"\\u001b[31mH100","nccl":"","torch":"2"}'
)
CELL = '{"event":"cell","op":"reduce","bytes":8,"times":[[0.1],[0.2]],"wrong":[0,null]}'


def read(folder: Path, *lines: str, more: Sequence[str] = ()) -> int:
    """Of a line that ran to its end."""
    (folder / "told").write_text("\n".join((*lines, '{"event":"done"}')))
    return main(["probe", "collectives", "--read", str(folder / "told"), *more])


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"cell"}',
        '{"event":"joined","ranks":"many"}',
        CELL.replace("reduce", "\\u001b[31m"),
        CELL.replace("[[0.1],[0.2]]", "[]"),
        CELL.replace("[[0.1],[0.2]]", "[[],[]]"),
        CELL.replace("[[0.1],[0.2]]", "[[0.1],[0.2,0.3]]"),
        CELL.replace("[[0.1],[0.2]]", "[[-1],[1e300]]"),
        CELL.replace("[0,null]", "[0]"),
        CELL.replace('"bytes":8', '"bytes":1e40'),
        '{"event":"skipped","op":"reduce"}',
    ],
)
def test_what_no_rank_says_is_one_sentence(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(tmp_path, JOINED, CELL, line) in (1, 2)
    output = capsys.readouterr()
    assert "internal error" not in output.err
    assert "\x1b" not in output.out + output.err
    assert output.out.count("reduce ") == 1  # what was good before it


def test_lines_between_those_of_ranks_do_no_harm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(tmp_path, "W1124 torchrun: warning", "[1]", '{"event": 3}', JOINED, CELL) == 0
    assert "reduce" in capsys.readouterr().out


def test_a_rank_that_failed_elsewhere_fails_here_and_results_before_it_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = '{"event":"failed","rank":1,"kind":"RuntimeError","error":"Connection closed by peer"}'
    assert read(tmp_path, JOINED, CELL, failed) == 1
    output = capsys.readouterr()
    assert "reduce" in output.out
    assert "the probe failed: rank 1: RuntimeError: Connection closed by peer" in output.err
    assert read(tmp_path, failed.replace("1,", '"x",')) == 2
    assert "is none that a probe's rank says" in capsys.readouterr().err


def test_a_file_that_is_no_text_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "told").write_bytes(b"\x7fELF\xd0\xff\n" * 9)
    assert main(["probe", "collectives", "--read", str(tmp_path / "told")]) == 3
    assert "nothing was measured: no rank reported anything" in capsys.readouterr().err


def test_a_textfile_appears_whole_and_can_be_read_by_a_collector(tmp_path: Path) -> None:
    place = tmp_path / "t.prom"
    place.write_text("old")
    before = os.umask(0o077)
    try:
        assert read(tmp_path, JOINED, CELL, more=("--textfile", str(place))) == 0
    finally:
        os.umask(before)
    assert 'op="reduce"' in place.read_text()
    assert place.stat().st_mode & 0o777 == 0o644
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t.prom", "told"]


def test_a_file_that_cannot_be_written_in_the_end_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert read(tmp_path, JOINED, CELL, more=("--textfile", str(tmp_path / "t.prom"))) == 3
    assert "t.prom cannot be written: No space left on device" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["told"]


def test_a_picture_needs_matplotlib_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mldebug_agents.probes.output.find_spec", lambda _: None)
    assert main(["probe", "collectives", "--plot", "x.png"]) == 3
    assert "--plot needs matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "begins"), [("t.png", b"\x89PNG\r\n"), ("t.svg", b"<?xml"), ("t.pdf", b"%PDF-")]
)
def test_a_picture_is_drawn(tmp_path: Path, name: str, begins: bytes) -> None:
    assert read(tmp_path, JOINED, CELL, more=("--plot", str(tmp_path / name))) == 0
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_picture_has_a_line_for_each_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _: drawn.append(figure))
    found = [
        measured(op, size=size) for op in ("all_reduce", "broadcast") for size in (1024, 1 << 20)
    ]
    plot([*found, measured("barrier", size=0)], tmp_path / "t.png", "2 ranks, gloo")
    (axes,) = drawn[0].axes
    assert [line.get_label() for line in axes.lines] == ["all_reduce", "broadcast"]
    for line in axes.lines:
        speeds = [one.busbw_bytes_per_second for one in found if one.op == line.get_label()]
        assert list(line.get_xdata()) == [1024, 1 << 20]
        assert list(line.get_ydata()) == [speed / 1e9 for speed in speeds if speed]
    assert axes.get_title() == "2 ranks, gloo"


def test_a_kind_of_picture_that_is_unknown_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(tmp_path, JOINED, CELL, more=("--plot", str(tmp_path / "t.nosuch"))) == 2
    assert (
        "t.nosuch cannot be drawn: there is no kind of picture .nosuch" in capsys.readouterr().err
    )


def test_of_one_rank_there_is_no_bandwidth() -> None:
    alone = msgspec.structs.replace(measured("broadcast"), ranks=1)
    assert row(alone).split()[-3:] == ["-", "-", "ok"]


def test_every_op_has_a_formula_and_a_row() -> None:
    assert set(OPS) >= {"all_reduce", "all_to_all", "send_recv", "barrier"}
    assert all(row(measured(op)).startswith(op) for op in OPS)


# --- the values: checked with the torch of this environment ------------------------------------------

torch = pytest.importorskip("torch", reason="the values are tensors")


def filled(values: Values, length: int, *ranks: int, first: int = 0) -> "torch.Tensor":
    """The sum over these ranks, made the slow way."""
    total = torch.zeros(length, dtype=torch.float64)
    for rank in ranks:
        part = torch.zeros(length, dtype=torch.float32)
        values.fill(part, rank, first)
        total += part
    return total.to(torch.float32)


def test_a_planted_wrong_element_is_found_wherever_it_is() -> None:
    values = Values(torch, 4, "float32", "cpu")
    length = BLOCK + 7
    right = filled(values, length, 0, 1, 2, 3)
    expected = [Stretch(0, length, (0, 1, 2, 3), 0)]
    assert values.wrong(right, expected) == 0
    for place in (0, BLOCK - 1, BLOCK, length - 1):
        right[place] += 1
        assert values.wrong(right, expected) == 1
        right[place] -= 1


def test_a_rank_left_out_and_parts_swapped_are_found() -> None:
    values = Values(torch, 4, "float32", "cpu")
    expected = [Stretch(0, 500, (0, 1, 2, 3), 0)]
    assert values.wrong(filled(values, 500, 0, 1, 2), expected) > 400
    parts = [Stretch(0, 250, (0,), 0), Stretch(250, 250, (1,), 0)]
    swapped = torch.cat([filled(values, 250, 1), filled(values, 250, 0)])
    assert values.wrong(swapped, parts) == 500


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bfloat16", "float16", "float32", "int64"])
@pytest.mark.parametrize("world", [1, 2, 8, 600])
def test_sums_are_exact_in_every_dtype_and_world(
    monkeypatch: pytest.MonkeyPatch, dtype: str, world: int
) -> None:
    # no more than is summed: each of 600 ranks would make a million elements
    monkeypatch.setattr("mldebug_agents.probes.inside.values.BLOCK", 300)
    values = Values(torch, world, dtype, "cpu")
    kind = getattr(torch, dtype)
    part, total = torch.zeros(300, dtype=kind), torch.zeros(300, dtype=kind)
    for rank in range(world):
        values.fill(part, rank)
        total += part
    assert values.wrong(total, [Stretch(0, 300, tuple(range(world)), 0)]) == 0
