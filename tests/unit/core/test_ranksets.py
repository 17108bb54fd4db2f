"""Folding rank sets and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.core.errors import UsageError
from mldebug.core.ranksets import fold_nodes, fold_ranks, shorten_ranks, unfold, unfold_nodes


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
