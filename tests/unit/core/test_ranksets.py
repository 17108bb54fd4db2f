"""Folding rank sets and back."""

import contextlib
import tracemalloc

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from mldebug.core.errors import UsageError
from mldebug.core.ranksets import (
    MAX_NODES,
    check_nodes,
    count_ranks,
    fold_nodes,
    fold_ranks,
    join_ranks,
    rank_intervals,
    shorten_ranks,
    unfold,
    unfold_nodes,
)


@pytest.mark.parametrize(
    ("ranks", "folded"),
    [
        ([0, 1, 2, 3, 4, 5, 7], "0-5,7"),
        ([7, 3, 3], "3,7"),
        ([], ""),
        ([0], "0"),
        (range(0, 6, 2), "0,2,4"),
        (range(8192), "0-8191"),
    ],
)
def test_folds_as_people_write(ranks: list[int], folded: str) -> None:
    assert fold_ranks(ranks) == folded


@given(st.sets(st.integers(0, 9_999), max_size=200))
def test_unfold_undoes_fold(ranks: set[int]) -> None:
    assert unfold(fold_ranks(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize(
    "text", ["-1", "a", "1-", "5-2", "1,,2", " 1", "0-10/0", "²", "0-9999999", "1\n", "9" * 5000]
)
def test_refuses_what_is_no_set_of_ranks(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        unfold(text)
    assert len(caught.value.message) < 100
    assert "0-5,7" in caught.value.way_out


def test_shortens_after_a_comma() -> None:
    assert shorten_ranks("0-5,7", 40) == "0-5,7"
    assert shorten_ranks("100,200,300,400", 10) == "100,200,…"
    assert len(shorten_ranks("1" * 50, 10)) == 10


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["node017", "node018", "node032"], "node[017-018,032]"),
        (["login", "gpu-2.x.y", "gpu-1.x.y"], "gpu-[1-2].x.y,login"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
        (["odd name", "a[1-2]", "@all"], "@all,a[1-2],odd name"),
        ([], ""),
    ],
)
def test_nodes_fold_as_people_write(names: list[str], folded: str) -> None:
    assert fold_nodes(names) == folded


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("r10i1n8,r10i2n0", ("r10i1n8", "r10i2n0")),
        ("r10i1n[7-8]", ("r10i1n7", "r10i1n8")),
        ("node-[42,49-51]", ("node-42", "node-49", "node-50", "node-51")),
        ("a[08-10]", ("a08", "a09", "a10")),
        ("localhost", ("localhost",)),
    ],
)
def test_node_lists_of_every_form_unfold(text: str, names: tuple[str, ...]) -> None:
    assert unfold_nodes(text) == names


@pytest.mark.parametrize("text", ["", "a[1-", "x y", "-v", "a[0-99999999]", "n" * (1 << 21)])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of nodes"):
        unfold_nodes(text)


WORST_NODES = {
    "product": "n[1-60000]x[1-60000]y[1-60000]z[1-60000]",
    "sum": ",".join(f"na{first}{second}[1-65000]" for first in "abcdefghijklmnopqrst" for second in "abcdefghij"),
    "overflow": "a[1-999999999][1-999999999][1-999999999][1-999999999]",
    "brackets": "[1-2]" * 200,
    "many numbers": "a" + "b[1-2]" * 9,
    "nested": "a[[1-2],[3-4]]",
    "open": "[" * 8000,
    "digits": "a[" + "9" * 8000 + "]",
    "padding": "a[000000000-999999999]",
    "downwards": "a[5-1]",
    "no step": "a[1-5/0]",
    "empty": "a[]",
    "commas": "," * 8000,
    "group": "@*",
    "operators": "a[1-60000]^b[1-60000]&c[1-60000]!d[1-60000]",
    "other digits": "a[\u0661-\u0669]",
    "control": "a\0b",
}  # fmt: skip


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("text", WORST_NODES.values(), ids=WORST_NODES.keys())
def test_the_worst_node_list_costs_nothing_and_raises_one_error(text: str, groups: bool) -> None:
    tracemalloc.start()
    with contextlib.suppress(UsageError):
        assert len(unfold_nodes(text, groups=groups)) <= MAX_NODES
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20  # bytes: nothing was expanded


@given(st.text(alphabet="an0159[]-,/ @!&^*:.", max_size=60))
def test_a_node_list_is_read_or_refused_and_no_other_error_comes(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert 0 < len(unfold_nodes(text, groups=False)) <= MAX_NODES
    with contextlib.suppress(UsageError):
        check_nodes(text)


@given(st.lists(st.from_regex(r"[a-z]{1,4}(\[[0-9]{1,2}(,[0-9]{1,2})?\])?[a-z]?", fullmatch=True), min_size=1, max_size=5))  # fmt: skip
def test_names_come_as_clustershell_has_them(parts: list[str]) -> None:
    text = ",".join(parts)
    assert unfold_nodes(text, groups=False) == tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))


def test_what_a_person_writes_may_have_operators() -> None:
    assert unfold_nodes("n[1-4]!n2,n9") == ("n1", "n3", "n4", "n9")
    with pytest.raises(UsageError):
        unfold_nodes("n[1-4]!n2", groups=False)


def test_a_list_has_at_most_as_many_as_its_reader_wants() -> None:
    assert len(unfold_nodes("n[1-2048]", most=2048)) == 2048
    with pytest.raises(UsageError, match="2,049 nodes"):
        unfold_nodes("n[1-2049]", most=2048)


def test_a_thousand_names_with_many_numbers_fold_by_the_last() -> None:
    """ClusterShell needs minutes for what another node may call itself."""
    names = [f"a{one}b{one * 7 % 13}c{one * 11 % 17}-{one % 5}" for one in range(3000)]
    folded = fold_nodes([*names, "login1", "login2"])
    assert folded.startswith("login[1-2],")
    assert set(unfold_nodes(folded)) == {*names, "login1", "login2"}


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("0-999999", 1_000_000), ("0-3,2-5,6", 7), ("5,1,3", 3)]
)
def test_announced_ranks_are_counted_and_not_expanded(text: str, count: int) -> None:
    assert count_ranks(rank_intervals(text)) == count
    assert count_ranks(rank_intervals(join_ranks([text, text]))) == count


@pytest.mark.parametrize("text", ["0-9/2", "3-1", "1,", "0," * 20_000 + "1", "0-9999999"])
def test_announced_ranks_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        rank_intervals(text)
    assert join_ranks([text, "7"]) == "7"


def test_intervals_that_overlap_hold_no_more_ranks_than_there_can_be() -> None:
    with pytest.raises(UsageError):
        unfold("0-999999,0-999999")


@given(st.sets(st.integers(0, 9_999), max_size=200))
def test_intervals_hold_the_same_ranks(ranks: set[int]) -> None:
    assert count_ranks(rank_intervals(fold_ranks(ranks))) == len(ranks)
    assert join_ranks(str(rank) for rank in ranks) == fold_ranks(ranks)
