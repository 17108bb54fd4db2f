"""What looking into one file may come to."""

from typing import Literal

WHOLE: Literal["whole"] = "whole"
BROKEN: Literal["broken"] = "broken"
UNSURE: Literal["unsure"] = "unsure"

Check = tuple[Literal["whole", "broken", "unsure"], str]
"""The answer, and a phrase that follows the name of the file: "is empty"."""
