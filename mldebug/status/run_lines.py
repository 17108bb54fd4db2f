"""What the agent says of one run and of itself, in the words that `status` and the web pages share. Pure."""

from collections.abc import Iterator

from mldebug.core.units import format_duration
from mldebug.stall.sentences import STAGE_WORDS, stage_words
from mldebug.status.hook_lines import said_words
from mldebug.status.snapshot import RunState, Snapshot

STALE = 90.0  # seconds: the longest `stall.interval` is 60


def pace_words(run: RunState) -> Iterator[str]:
    """`step 41`, `loss 2.25`, and what the hooks say."""
    if run.step is not None:
        yield f"step {run.step}"
    if run.loss is not None:
        yield f"loss {run.loss:g}"
    yield from said_words(run)


def state_words(run: RunState) -> str:
    """`watching: last step 1.2 s ago (usual gap 0.4 s); a stall after 30s (5 times the usual)`."""
    told = f"{_sentence(run)}{_limit(run)}"
    return f"{stage_words(run.stage)}: {told}" if told else stage_words(run.stage)


def mood(run: RunState) -> str:
    """How bad it is in one word, the colour of a mark: good, quiet, bad."""
    if run.incident:
        return "bad"
    return "good" if run.stage in ("watching", "recovered") else "quiet"


def _sentence(run: RunState) -> str:
    """Why it is quiet or not, without the reason of the limit, which follows."""
    return run.sentence.replace(f" ({run.why_timeout})", "") if run.why_timeout else run.sentence


def _limit(run: RunState) -> str:
    """How much silence counts as a stall, and where that comes from."""
    if run.incident or not run.timeout_seconds or run.stage in STAGE_WORDS:  # it is past that
        return ""
    return f"; a stall after {format_duration(round(run.timeout_seconds, 1))} ({run.why_timeout})"


def stale_words(age: float) -> str:
    """That the agent has not looked for `age` seconds, told by the minute; "" while it looks."""
    if age <= STALE:
        return ""
    minutes = format_duration(60.0 * (age // 60))
    return f"the agent has not looked for {minutes}: what it says is old; see its log"


def ailing_lines(agent: Snapshot) -> Iterator[str]:
    """What the agent cannot do at present."""
    for source in agent.sources:
        if source.name == "gpus" and agent.gpus_released_until:
            continue  # it is told by itself
        if source.stuck:
            yield f"its {source.name} is stuck"
        elif not source.success:
            yield f"its {source.name} fails: {source.error}"
    writes = next((one for one in agent.sources if one.name == "write"), None)
    if agent.reports_waiting and (writes is None or writes.stuck or not writes.success):
        count = agent.reports_waiting
        yield f"{count} {'report waits' if count == 1 else 'reports wait'} in memory for the state dir"
    if agent.reports_lost:
        yield f"{agent.reports_lost} reports or states could not be stored since it started"
