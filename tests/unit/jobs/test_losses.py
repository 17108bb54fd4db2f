"""What stands before a loss says whose it is; no digit in it makes a difference, so that the answer may be remembered for lines that differ in
their digits alone.
"""

import random

from mldebug.jobs.logs import losses
from unit.jobs.test_quiet_lines import texts, with_other_digits


def test_the_rank_of_a_loss_is_the_same_whatever_digits_stand_before_it() -> None:
    dice, compared = random.Random(3), 0
    for text in texts():
        for line in text.lower().split("\n"):
            for found in losses._LOSS.finditer(line):
                before = line[max(0, found.start() - losses.MOST) : found.start()]
                judged = losses._rank_behind.__wrapped__(before, found["tail"])
                other = with_other_digits(before, dice)
                assert judged == losses._rank_behind.__wrapped__(other, found["tail"]), before
                assert judged == losses._rank(line, found), before
                compared += 1
    assert compared > 1000


def test_what_is_remembered_is_bounded() -> None:
    losses._rank_behind.cache_clear()
    for number in range(2 * losses.REMEMBERED):
        losses.training_loss(f"{'x' * (number % 40)}{'y' * (number // 40)} loss 1.0")
    assert losses._rank_behind.cache_info().currsize <= losses.REMEMBERED
