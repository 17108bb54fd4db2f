"""`mldebug probe curve`: which numbers of nodes are measured, and how the figures are shown."""

from pathlib import Path

import pytest

from mldebug.cli.main import main
from mldebug.probes.collectives import CollectiveResult, collective_result
from mldebug.probes.curve import CurvePoint, as_csv, counts, table


def result(op: str, size: int, ranks: int, seconds: float) -> CollectiveResult:
    return collective_result(op, size, [[seconds]] * ranks, [0] * ranks)


POINTS = (
    CurvePoint(nodes=2, results=(result("all_reduce", 1 << 20, 4, 0.1), result("all_reduce", 1 << 30, 4, 1.0), result("barrier", 0, 4, 0.1))),
    CurvePoint(nodes=4, results=(result("all_reduce", 1 << 20, 8, 0.1), result("all_reduce", 1 << 30, 8, 2.0))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "found"),
    [(2, (2,)), (3, (2, 3)), (4, (2, 4)), (7, (2, 4, 7)), (8, (2, 4, 8)), (1000, (2, 4, 8, 16, 32, 64, 128, 256, 512, 1000))],
)  # fmt: skip
def test_nodes_are_doubled_and_all_of_them_come_last(nodes: int, found: tuple[int, ...]) -> None:
    assert counts(nodes) == found


def test_the_largest_payload_is_shown_beside_the_fewest_nodes() -> None:
    heading, columns, first, second = table(POINTS)
    assert "GB/s" in heading
    assert columns.split() == ["nodes", "ranks", "all_reduce", "1GiB"]
    assert first.split() == ["2", "4", "1.61"]
    assert second.split() == ["4", "8", "0.94", "(-42%)"]
    assert all(len(line) <= 80 for line in table(POINTS))


def test_only_the_same_payload_is_compared() -> None:
    """A payload that was left out over more nodes, where it took too long, is not set beside a smaller one."""
    small = CurvePoint(nodes=4, results=(result("all_reduce", 1 << 20, 8, 0.1),))
    _, columns, first, second = table((POINTS[0], small))
    assert columns.split() == ["nodes", "ranks", "all_reduce", "1MiB"]
    assert [one.split()[:2] for one in (first, second)] == [["2", "4"], ["4", "8"]]
    assert second.split()[3] == "(+17%)"


def test_what_has_no_payload_in_common_is_not_compared() -> None:
    other = CurvePoint(nodes=4, results=(result("all_reduce", 1 << 22, 8, 0.1),))
    _, columns, first, second = table((POINTS[0], other))
    assert columns.split()[-1] == "1GiB"
    assert (first.split()[2], second.split()[2]) == ("1.61", "-")


def test_what_moves_nothing_has_no_column() -> None:
    assert list(table([CurvePoint(nodes=2, results=(result("barrier", 0, 2, 0.1),))])) == []


def test_a_table_in_a_file_has_every_result() -> None:
    lines = as_csv(POINTS).splitlines()
    assert lines[0].startswith("nodes,ranks,op,bytes,")
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["2", "4", "all_reduce", "1048576"], ["2", "4", "all_reduce", "1073741824"], ["2", "4", "barrier", "0"],
        ["4", "8", "all_reduce", "1048576"], ["4", "8", "all_reduce", "1073741824"],
    ]  # fmt: skip


def test_one_node_is_no_curve(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "curve", "--hosts", "n1"]) == 2
    assert "two nodes at least" in capfd.readouterr().err


def test_a_place_that_cannot_be_written_is_told_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", "curve", "--hosts", "n1,n2", "--csv", str(tmp_path / "none" / "table.csv")]
    assert main(words) == 2
    assert "cannot be written" in capfd.readouterr().err
