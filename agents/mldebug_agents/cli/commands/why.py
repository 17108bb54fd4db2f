"""Say what differs between two runs."""

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.config.schema import load_config
from mldebug.core.errors import AccessError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.text import rfc3339
from mldebug.diagnosis.exits.model import words_of_status
from mldebug.jobs.run_records.differences import Difference, RunComparison, compare_runs
from mldebug.jobs.run_records.model import RunRecord, RunSummary, without_numbers
from mldebug_agents.web.client import ask_nearest, figures_of_run, record_of_run, recorded_runs

SHOWN = 40  # differences of one subject
WIDEST = 44  # characters of both values, where they stand in one line
LONGEST = 300  # characters of a value
WELL = words_of_status(0)


@click.command("why")
@click.argument("run_a", metavar="[RUN_A]", required=False, default="")
@click.argument("run_b", metavar="[RUN_B]", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(run_a: str, run_b: str, as_json: bool, config: Path | None) -> None:
    """Say what differs between two runs: code, arguments, packages, environment, nodes, speed, loss.

    With one run: against the run before it of the same job. Without any: list the runs that are recorded on this node. A
    run is known by its id or the beginning of one.
    """
    state_dir, runs = _recorded(load_config(config).agent.state_dir)
    if not run_a:
        _print_list(runs, as_json)
        return
    after = _chosen(runs, run_b or run_a)
    before = _chosen(runs, run_a) if run_b else _before(runs, after)
    compared = compare_runs(
        record_of_run(state_dir, before.run),
        record_of_run(state_dir, after.run),
        (figures_of_run(state_dir, before.run), figures_of_run(state_dir, after.run)),
    )
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(compared), indent=2).decode())
        return
    console = Console()
    for line in lines(compared):
        print_line(console, line)


def _recorded(state_dir: Path) -> tuple[Path, tuple[RunSummary, ...]]:
    found, answer = ask_nearest(state_dir)
    if answer.snapshot is None:
        raise AccessError(
            answer.trouble or "no agent runs on this node, so no run has been recorded",
            "mldebug up  # starts one: before the runs that you want to compare",
        )
    return found, recorded_runs(found)


def _chosen(runs: tuple[RunSummary, ...], wanted: str) -> RunSummary:
    exact = [one for one in runs if one.run == wanted]
    found = exact or [one for one in runs if one.run.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    which = ", ".join(clean(one.run, 40) for one in found[:8])
    if found:
        raise UsageError(f"{clean(wanted, 60)!r} may be {which}", "mldebug why")
    raise UsageError(f"no run {clean(wanted, 60)!r} is recorded on this node", "mldebug why")


def _before(runs: tuple[RunSummary, ...], after: RunSummary) -> RunSummary:
    """The last run of the same job that began before this one; one that ended well is preferred."""
    earlier = [
        one
        for one in runs
        if (one.user, one.script) == (after.user, after.script)
        and without_numbers(one.name) == without_numbers(after.name)
        and one.started_at < after.started_at
    ]
    same = [one for one in earlier if one.name == after.name] or earlier
    if not same:
        raise UsageError(
            f"no run of {clean(after.name, 60)} before {clean(after.run, 40)} is recorded on this node",
            "mldebug why RUN_A RUN_B",
        )
    return max(same, key=lambda one: (one.outcome == WELL, one.started_at))


def _print_list(runs: tuple[RunSummary, ...], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(runs), indent=2).decode())
        return
    console = Console()
    for one in runs:
        print_line(console, Text(f"{clean(one.run, 40):<14} {_about(one)}"))
    if not runs:
        click.echo("No run is recorded on this node yet. A run is recorded after its first 20 s.")


def _about(one: RunSummary | RunRecord) -> str:
    end = (clean(one.outcome, 80) or "ended, nobody saw how") if one.is_over else "runs"
    who = f"{clean(one.name, 40)} of {clean(one.user, 40) or 'nobody known'}"
    return f"{who}, {one.world_size} ranks, since {rfc3339(one.started_at)}: {end}"


def lines(found: RunComparison) -> Iterator[Text]:
    """Yield what the command prints about two runs: who they are, a table of what differs, and what is the same."""
    yield Text(f"A  {clean(found.before.run, 40)}  {_about(found.before)}", style="bold")
    yield Text(f"B  {clean(found.after.run, 40)}  {_about(found.after)}", style="bold")
    yield Text("")
    many = len(found.differences)
    yield Text("Nothing that is recorded differs." if not many else f"{many} difference{'' if many == 1 else 's'}:")  # fmt: skip
    last, shown = "", 0
    for one in found.differences:
        shown = shown + 1 if one.subject == last else 1
        if one.subject != last:
            yield Text(f"  {one.subject}", style="bold")
        last = one.subject
        if shown <= SHOWN:
            yield from _difference_lines(one)
        elif shown == SHOWN + 1:
            rest = sum(it.subject == last for it in found.differences) - SHOWN
            yield Text(f"    and {rest} more: --json has all")
    alike = ", ".join(f"{count:,} of {subject}" for subject, count in found.same.items() if count)
    if alike:
        yield Text(f"The same: {alike}.")
    gaps = (*found.not_compared, *_gaps("A", found.before), *_gaps("B", found.after))
    for gap in gaps:
        yield Text(f"Not compared: {clean(gap, 160)}", style="dim")


def _difference_lines(one: Difference) -> Iterator[Text]:
    name, (before, after) = clean(one.name, 60), _where_they_part(one.before, one.after)
    if len(name) <= 24 and len(before) + len(after) <= WIDEST:
        yield Text(f"    {name:<24} {before}  ->  {after}")
        return
    yield Text(f"    {name}")
    yield Text(f"      A  {before}")
    yield Text(f"      B  {after}")


def _where_they_part(before: str, after: str) -> tuple[str, str]:
    """Both values; of long ones the part from shortly before the place where they begin to differ."""
    alike = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), LONGEST)  # fmt: skip
    begin = max(0, alike - 40) if max(len(before), len(after)) > LONGEST else 0
    dots = "…" if begin else ""
    return clean(dots + before[begin:], LONGEST), clean(dots + after[begin:], LONGEST)


def _gaps(which: str, record: RunRecord) -> Iterator[str]:
    return (f"{which}: {gap}" for gap in record.gaps)


def create(_: NoOptions) -> click.Command:
    """Build the command `mldebug why`: say what differs between two runs."""
    return command
