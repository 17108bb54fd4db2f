"""Folding rank sets and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.errors import UsageError
from mldebug.folding import fold_ranks, shorten_ranks, unfold


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
