"""Collects quotas by a site's own tools: one program for each, with a deadline, in the C locale."""

import os
from collections.abc import Iterator, Sequence

from mldebug.config.storage import QuotaConfig as Wanted
from mldebug.core.model import Gap, Job
from mldebug.core.redact import clean
from mldebug.core.units import size_words
from mldebug.storage.filesystems.quotas import QuotaError, QuotaUsage, read_quota
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug_agents.system.context import Context
from mldebug_agents.system.spawn import Completed

INTERVAL = 300.0  # seconds: a quota tool asks a server
MAX_OUTPUT = 1 << 20
WAY_OUT = "run it by hand as the agent's user, and compare with storage.quotas"


class QuotaCollector:
    """Runs the configured command of each quota and reads its output."""

    name = "quotas"
    interval = INTERVAL

    def __init__(self, context: Context) -> None:
        self._context = context
        self._wanted: dict[str, Wanted] = {}
        self._quotas: dict[str, QuotaUsage] = {}
        self._failed: dict[str, str] = {}

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Run the configured quota commands one after another; a command that hangs is ended after its own timeout. `now`:
        unix time.
        """
        self._wanted, self._quotas, self._failed = dict(self._context.config.storage.quotas), {}, {}
        for name, wanted in self._wanted.items():
            try:
                self._quotas[name] = read_quota(wanted.pattern, self._run(wanted))
            except QuotaError as error:
                self._failed[name] = str(error)

    def samples(self) -> Iterator[Measure]:
        """For each quota the share that is used (0 to 1), and 1 or 0 for whether its command failed."""
        for name in self._wanted:
            failed = float(name in self._failed)
            yield Measure(metric="mldebug_quota_failed", labels=(name,), value=failed)
        for name, quota in self._quotas.items():
            yield Measure(metric="mldebug_quota_used_ratio", labels=(name,), value=quota.share)

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "quotas": one row for each quota that was read."""
        rows = tuple(_row(name, quota) for name, quota in self._quotas.items())
        return {"quotas": rows} if rows else {}

    def alarms(self) -> Iterator[StorageAlert]:
        """Alerts about quotas of which more is used than their limit."""
        for name, quota in self._quotas.items():
            if quota.share >= self._wanted[name].limit:
                words = f"quota {_line(name, quota)}"
                yield StorageAlert(kind="quota", subject=name, sentence=words)

    def gaps(self) -> Iterator[Gap]:
        """Quotas whose command failed, and why."""
        for name, why in self._failed.items():
            yield Gap(what=f"quota {name}", reason=why, way_out=WAY_OUT)

    def _run(self, wanted: Wanted) -> str:
        if not wanted.command:
            raise QuotaError("no command is configured")
        path = os.environ.get("PATH", "/usr/bin:/bin")
        done = self._context.spawner.run(
            wanted.command,
            timeout=wanted.timeout,
            max_output=MAX_OUTPUT,
            env={"PATH": path, "LC_ALL": "C", "LANG": "C"},
        )
        if why := _failure(done):
            raise QuotaError(why)
        return done.stdout.decode(errors="replace")


def _failure(done: Completed) -> str:
    if done.timed_out:
        return f"the tool had not answered after {done.seconds:.0f} s"
    if done.error:
        return f"the tool could not be run: {done.error}"
    if done.truncated:
        return "the tool printed too much"
    if done.returncode:
        first = clean(done.stderr.decode(errors="replace").strip().partition("\n")[0], 120)
        return f"the tool failed with exit code {done.returncode}{first and f': {first}'}"
    return ""


def _row(name: str, quota: QuotaUsage) -> Row:
    return {
        "quota": name,
        "used_ratio": round(quota.share, 4),
        "used_bytes": quota.used,
        "limit_bytes": quota.limit,
        "line": _line(name, quota),
    }


def _line(name: str, quota: QuotaUsage) -> str:
    if quota.used is None or quota.limit is None:
        return f"{name}: {quota.share:.1%} used"
    return f"{name}: {quota.share:.1%} used, {size_words(quota.used)} of {size_words(quota.limit)}"
