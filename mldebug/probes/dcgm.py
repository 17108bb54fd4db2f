"""What `dcgmi diag -j` of NVIDIA's DCGM 3 and 4 found, as a check of the node. Pure.

DCGM 3 has `DCGM GPU Diagnostic` with `gpu_ids` and warnings as text, DCGM 4 `DCGM Diagnostic` with `entity_id` and warnings as objects.
Both may print lines of text before and after the JSON, and null among the tests. Where the diagnostic itself could not run, there is
`runtime_error` and no test.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from mldebug.core.redact import clean
from mldebug.probes.checks import NodeCheck

STAGE = "dcgm"
ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
SECONDS = {1: 120.0, 2: 600.0, 3: 2700.0, 4: 9000.0}
"""Levels of `dcgmi diag -r`, and how long each may take."""
_SETTING = (1, 5)  # DCGM_ERROR_MONITOR, DCGM_ERROR_CONFIG: nothing is broken
_MOST = 4
MAX_OUTPUT = 4 << 20  # bytes that are looked at
_MOST_BRACES = 8  # places that are tried: a line before the report may have a brace of its own
_DECODER = json.JSONDecoder()


class DiagResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one DCGM test, for which GPUs ("0", "0,1", "" for the node), and why it failed."""

    test: str
    gpus: str
    status: str  # pass, fail, warn, skip: small letters
    words: str = ""
    setting: bool = False  # only settings are wrong

    def sentence(self) -> str:
        """The result in words: `memory of GPU 3: …`."""
        whose = f" of GPU {self.gpus}" if self.gpus else ""
        return f"{self.test}{whose}" + (f": {self.words}" if self.words else "")


def parse_diag(output: bytes) -> tuple[DiagResult, ...] | None:
    """All results in the output of `dcgmi diag -j`; None where it holds no report of DCGM."""
    root = _report(output)
    return None if root is None else tuple(one for test in _tests(root) for one in _results(test))


def _report(output: bytes) -> dict[str, Any] | None:
    """The report in the output, from the first brace at which there is one."""
    text = output[:MAX_OUTPUT].decode(errors="replace")
    begin = text.find("{")
    for _ in range(_MOST_BRACES):
        if begin < 0:
            return None
        try:
            found, _ = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError):  # also a number of thousands of digits
            found = None
        roots = [found[name] for name in ROOTS if name in found] if isinstance(found, dict) else []
        if roots:
            return roots[0] if isinstance(roots[0], dict) else None
        begin = text.find("{", begin + 1)
    return None


def _tests(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for category in _dicts(root.get("test_categories")):
        yield from _dicts(category.get("tests"))


def _results(test: dict[str, Any]) -> Iterator[DiagResult]:
    name = clean(str(test.get("name", "a test")), 60)
    for one in _dicts(test.get("results")):
        gpus = one.get("gpu_ids", one.get("entity_id") if one.get("entity_group") == "GPU" else "")
        warnings = one.get("warnings") or []
        listed = warnings if isinstance(warnings, list) else [warnings]
        codes = [each.get("error_severity") for each in _dicts(listed)]
        yield DiagResult(
            test=name,
            gpus=clean(str(gpus), 40),
            status=str(one.get("status", "")).lower(),
            words="; ".join(_words(each) for each in listed[:2]),
            setting=bool(codes) and len(codes) == len(listed) and all(code in _SETTING for code in codes),
        )  # fmt: skip


def _words(warning: object) -> str:
    text = warning.get("warning", "") if isinstance(warning, dict) else warning
    return clean(str(text), 160).strip()


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def diag_check(output: bytes, level: int, trouble: str, seconds: float) -> NodeCheck:
    """The check of a node from the output of one run of `dcgmi diag` at this level, which took `seconds`.

    `trouble`: why the tool was ended or could not run; "" where it ended by itself.

    The tool's exit code is not used, as it differs with the version.
    """
    found = parse_diag(output)
    run = f"dcgm: `dcgmi diag -r {level}`"
    if trouble:
        return NodeCheck(stage=STAGE, state="failed", sentence=f"{run} {trouble}", seconds=seconds)
    if not found:
        why = clean(str((_report(output) or {}).get("runtime_error", "")), 200).strip()
        why = why or "is nv-hostengine allowed to see the GPUs?"
        return NodeCheck(stage=STAGE, state="skipped", sentence=f"{run} gave no result: {why}", seconds=seconds)  # fmt: skip
    failed = [one for one in found if one.status == "fail" and not one.setting]
    minor = [one.sentence() for one in found if one.status in ("fail", "warn") and one not in failed]  # fmt: skip
    if failed:
        return NodeCheck(stage=STAGE, state="failed", sentence=f"{run}: {_few([one.sentence() for one in failed])}", seconds=seconds)  # fmt: skip
    passed = len({one.test for one in found if one.status == "pass"})
    if not passed and not minor:
        return NodeCheck(stage=STAGE, state="skipped", sentence=f"{run}: DCGM skipped every test here", seconds=seconds)  # fmt: skip
    more = f"; told: {_few(minor)}" if minor else ""
    return NodeCheck(stage=STAGE, state="fine", sentence=f"{run}: {passed} tests passed{more}", seconds=seconds)  # fmt: skip


def _few(sentences: list[str]) -> str:
    more = f"; and {len(sentences) - _MOST} more" if len(sentences) > _MOST else ""
    return "; ".join(sentences[:_MOST]) + more
