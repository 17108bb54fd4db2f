"""Numbers in a rank's last words: which of them all ranks hold alike or others have made, and which are of the rank alone."""

import pytest

from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.raised_in import RaisedIn


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        ("OSError: [Errno 28] No space left on device: '/ckpt/optimizer_nan_7.pt'", Blame.OWN),
        ("ValueError: sample 17 has nan weight", Blame.OWN),
        ("ValueError: dataset has nan in column 'weight'", Blame.OWN),
        ("RuntimeError: weights contain inf in row 7 of /data/shard-7.parquet", Blame.OWN),
        ("RuntimeError: grad norm is nan at sample 12800", Blame.UNCLEAR),
        ("RuntimeError: weights of 'encoder' are nan", Blame.UNCLEAR),
    ],
)
def test_a_number_that_is_not_finite_is_everybodys_only_where_all_hold_it(
    words: str, blame: Blame
) -> None:
    """A full disk is the machine's word, and one item of the data is of the rank that read it."""
    assert blame_of(words, RaisedIn(own_raise=True)) is blame


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        ("ValueError: env 3 returned observation of shape (84,) expected (84, 84, 3)", Blame.OWN),
        ("ValueError: actor 3 batch size 7 must be divisible by 8", Blame.OWN),
        ("AssertionError: sampler index 120 out of range for dataset of length 9", Blame.OWN),
        ("ValueError: label 1000 out of range at step 7, expected < 1000", Blame.OWN),
        ("ValueError: unsupported format version 3, expected 2", Blame.OWN),
        ("RuntimeError: 15 of 16 envs returned an observation", Blame.UNCLEAR),
        ("ValueError: only 31 samples from rollout, need 32", Blame.UNCLEAR),
        ("RuntimeError: step 12 expected, have 11", Blame.UNCLEAR),
        ("RuntimeError: policy version 41 but rollout worker has 40", Blame.UNCLEAR),
    ],
)
def test_a_number_counts_what_others_made_only_where_it_is_a_count(
    words: str, blame: Blame
) -> None:
    """Which one it is, a shape, an index, a size or the moment at which it was found count nothing."""
    assert blame_of(words, RaisedIn(own_raise=True)) is blame
