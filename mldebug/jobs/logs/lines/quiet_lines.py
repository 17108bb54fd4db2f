"""Lines that tell nothing come again and again with other numbers: of each such form one is judged, the others are passed over.

A line without its digits is its shape. A shape is quiet where no sign of any log format stands in it, nor a line of NCCL's that counts, also
without their digits. Taking digits out of a line can make such a word, and can destroy none: so no line with a quiet shape has one.
"""

import re
from collections.abc import Iterable, Sequence

MOST = 4096  # shapes that are remembered
LONGEST = 400  # characters of one
_DIGITS = {ord(digit): None for digit in "0123456789"}


class QuietLines:
    """The shapes of lines in which no log format can read anything. `signs`: words in lower case of which each line that can be read has one;
    without any, no shape is quiet. `also`: what else must not be passed over, a pattern without digits.
    """

    def __init__(self, signs: Iterable[str], also: re.Pattern[str]) -> None:
        words = tuple(signs)
        self._signs = tuple(sign for sign in words if not _has_digits(sign))
        self._numbers = tuple(sign for sign in words if _has_digits(sign))  # `e-0`, of `1e-05`
        self._also = also
        self._once: set[str] = set()
        self.shapes: dict[str, bool] = {"": True} if words else {}
        """By shape, whether it is quiet whatever its digits are; where they matter, `may_count` says it of the line."""

    def shapes_of(self, text: str) -> Sequence[str]:
        """The shape of each line of a text."""
        return text.translate(_DIGITS).split("\n")

    def may_count(self, line: str) -> bool:
        """Whether a line whose shape is quiet but for its digits has a sign with digits."""
        lower = line.lower()
        return any(sign in lower for sign in self._numbers)

    def learn(self, shape: str) -> None:
        """Note that a line of this shape told nothing. It is judged when it comes for the second time: most that come once never come again."""
        if not self.shapes or len(shape) > LONGEST:
            return
        if shape not in self._once:
            self._once = self._once if len(self._once) < MOST else set()
            self._once.add(shape)
            return
        self._once.discard(shape)
        lower = shape.lower()
        if not self._also.search(shape) and not any(sign in lower for sign in self._signs):
            self.shapes = self.shapes if len(self.shapes) < MOST else {"": True}
            self.shapes[shape] = not any(sign.translate(_DIGITS) in lower for sign in self._numbers)


def _has_digits(sign: str) -> bool:
    return any(one.isdigit() for one in sign)
