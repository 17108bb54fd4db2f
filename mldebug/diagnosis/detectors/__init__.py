"""Detectors, one file per verdict: each judges the classified ranks and returns a finding, or None."""

from typing import Protocol

from mldebug.core.model import Finding
from mldebug.diagnosis.classify.case import Case


class Detector(Protocol):
    """Gives one verdict, and only on the evidence that its definition in docs/verdicts.md names."""

    def judge(self, case: Case) -> Finding | None: ...
