"""The reference page of all known traps, made from the rules."""

from collections.abc import Iterator

from mldebug.jobs.known_issues import log_rules, setting_rules, version_rules
from mldebug.jobs.known_issues.match import SETTINGS
from mldebug.jobs.known_issues.model import IssueRule

HEAD = """\
# Known traps

<!-- Made from the rules in mldebug/jobs/known_issues/ by
     pytest tests/docs/test_known_issues_page.py --update-golden
     Do not edit. -->

Versions, settings and log lines that are known to hang a training, or to mislead whoever looks for why. `mldebug status`
lists those that a job sits in; reports have them as notes; `mldebug_run_known_traps` counts them. They are never an alarm, and
never name a culprit: most such jobs go well.

When a job is found, the agent reads `torch/version.py` beside the library that a rank has mapped, and NCCL's version from its
file name or from `nccl.h` beside it. It reads the settings below as they were when the process began; what a script sets later
cannot be seen. Nothing is imported, and all of it is read once; how many cores a rank may use is asked at each look. Where a
version is not known, or is one before its release (`2.6.0a0+…`) at the edge of a span, no rule that asks for it holds.

Lines of NCCL's in the log (`NCCL_DEBUG=WARN` or `INFO`) need the agent. A line counts where its writer can be a rank of the job:
one of another job or of an earlier launch does not. An address is given its host's name where a rank there said that the
address is its own, or where /etc/hosts has it; no name server is asked.
"""

GROUPS = (
    ("Versions", version_rules.RULES),
    ("Settings", setting_rules.RULES),
    ("Lines in the log", log_rules.RULES),
)


def page() -> str:
    """The reference page of all known issues, in Markdown."""
    lines = [HEAD]
    for title, rules in GROUPS:
        lines += _table(title, rules)
    listed = ", ".join(f"`{name}`" for name in SETTINGS)
    lines.append(f"## What is read of an environment\n\n{listed}; nothing else of it is kept for this.\n")  # fmt: skip
    return "\n".join(lines)


def _table(title: str, rules: tuple[IssueRule, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| trap | where | what is wrong | what to do | source |"
    yield "|---|---|---|---|---|"
    yield from map(_row, rules)
    yield ""


def _row(rule: IssueRule) -> str:
    where = [span.words() for span in rule.spans] or [f"`{name}`" for name in rule.reads]
    condition = "; ".join(filter(None, (", ".join(where), rule.when)))
    return f"| `{rule.name}` | {condition} | {rule.wrong} | {rule.todo} | <{rule.source}> |"
