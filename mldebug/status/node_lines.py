"""Several nodes in lines for a terminal: who does not answer first, then runs, then nodes, folded where they are alike. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from mldebug.core.model import GpuBrief, NodeBrief
from mldebug.core.ranksets import fold_nodes, shorten_ranks
from mldebug.core.redact import clean
from mldebug.core.text import plural
from mldebug.core.units import duration_words
from mldebug.status.gpu_lines import StatusLine
from mldebug.status.merged_runs import RunOnNodes, ViewedNodes, merge_runs

NAMES = 40  # characters of a list of nodes
MOST = 24  # lines of one kind
GIB = 1 << 30
GOOD = ("healthy", "unknown")  # states of a GPU that are no bad news
NO_AGENT = "no agent"


def status_of_nodes(nodes: ViewedNodes) -> Iterator[StatusLine]:
    """Runs, agents, GPUs and alerts of all nodes."""
    yield from _silent(nodes)
    runs = merge_runs(nodes.answers)
    yield StatusLine(f"{_counted(nodes)}: {plural(len(runs), 'training run')}")
    for run in runs[:MOST]:
        yield StatusLine("")
        yield from _run(run)
    if len(runs) > MOST:
        yield StatusLine(f"… and {len(runs) - MOST} more runs: --json lists them")
    yield StatusLine("")
    yield from _folded(((node.node, _node_words(node)) for node in nodes.answers), "")
    alerts = ((node.node, line) for node in nodes.answers for line in (node.agent_trouble, *node.alerts, *node.storage_alerts) if line)  # fmt: skip
    yield from _folded(alerts, "! ", bad=True)
    yield from _folded(((node.node, f"not seen: {gap}") for node in nodes.answers for gap in node.gaps), "")  # fmt: skip


def gpus_of_nodes(nodes: ViewedNodes) -> Iterator[StatusLine]:
    """The GPUs of all nodes: nodes whose GPUs are alike in one line, then what is wrong with which."""
    yield from _silent(nodes)
    yield StatusLine(f"{_counted(nodes)}: {_sum(nodes.answers)}")
    alike: dict[str, list[NodeBrief]] = {}
    for node in nodes.answers:
        alike.setdefault(_gpu_words(node), []).append(node)
    for words, some in sorted(alike.items(), key=lambda one: -len(one[1])):
        bad = any(gpu.state not in GOOD for gpu in some[0].gpus)
        yield StatusLine(f"{_names(node.node for node in some)}  {words}", bad)
        if use := _use_words([gpu for node in some for gpu in node.gpus]):
            yield StatusLine(f"  {use}")
    yield from _folded(((node.node, line) for node in nodes.answers for line in node.alerts), "! ", bad=True)  # fmt: skip


def _silent(nodes: ViewedNodes) -> Iterator[StatusLine]:
    """Nodes that did not answer, by reason."""
    yield from _folded(nodes.silent.items(), "✘ ", bad=True)


def _folded(lines: Iterable[tuple[str, str]], mark: str, *, bad: bool = False) -> Iterator[StatusLine]:  # fmt: skip
    """What nodes say, a line for all that say the same."""
    by_words: dict[str, list[str]] = {}
    for node, words in lines:
        by_words.setdefault(clean(words, 300), []).append(node)
    for words, names in list(by_words.items())[:MOST]:
        yield StatusLine(f"{mark}{_names(names)}: {words}", bad)
    if len(by_words) > MOST:
        yield StatusLine(f"… and {len(by_words) - MOST} more lines: --json lists them")


def _names(names: Iterable[str]) -> str:
    return shorten_ranks(fold_nodes(clean(name, 100) for name in names), NAMES)


def _counted(nodes: ViewedNodes) -> str:
    """How many answered, and who they are."""
    here, away = len(nodes.answers), len(nodes.silent)
    names = f" ({_names(node.node for node in nodes.answers)})" if here else ""
    if not away:
        return f"{plural(here, 'node')}{names}"
    return f"{here} of {plural(here + away, 'node')} answered{names}"


def _run(run: RunOnNodes) -> Iterator[StatusLine]:
    first = run.first
    age = f", started {duration_words(first.age)} ago" if first.age else ""
    attempt = f", attempt {first.attempt}" if first.attempt else ""
    yield StatusLine(clean(f"{first.name}  id {first.id}", 160))
    yield StatusLine(f"  {clean(first.launcher, 40)}, user {clean(first.user, 40)}{age}{attempt}")
    nodes = f" on {plural(len(run.nodes), 'node')}: {_names(run.nodes)}"
    ranks = "ranks" if len(run.ranks) != 1 else "rank"
    yield StatusLine(f"  {ranks} {run.rank_words()}{nodes}")
    if run.absent:
        yield StatusLine(f"  {plural(run.absent, 'rank')} missing", True)
    for node, rank in [one for one in run.ranks if one[1].state == "exited"][:MOST]:
        how = f": {clean(rank.doing, 200)}" if rank.doing else ""
        yield StatusLine(f"  rank {rank.rank} on {clean(node, 100)} is gone{how}", True)
    pace = [f"step {run.step}"] if run.step is not None else []
    pace += [f"loss {first.loss:g}"] if first.loss is not None else []
    if pace:
        yield StatusLine(f"  {', '.join(pace)}")
    if first.sentence:
        yield StatusLine(f"  {clean(first.sentence, 400)}", bool(first.incident))
    for words in (first.slowness, first.data_wait):
        if words:
            yield StatusLine(f"  {clean(words, 400)}")
    if first.incident:
        yield StatusLine(f"  {clean(first.report, 400)}", True)
        yield StatusLine(f"  the whole report, on {run.nodes[0]}: mldebug reports show {clean(first.incident, 80)}")  # fmt: skip


def _node_words(node: NodeBrief) -> str:
    """What a node is, without what differs from node to node."""
    ranks = sum(rank.state != "exited" for run in node.runs for rank in run.ranks)
    agent = NO_AGENT if node.agent_seconds is None else "an agent watches"
    gpus = f", {_gpu_words(node)}" if node.gpus else ""
    return f"{plural(ranks, 'rank')}, {agent}{gpus}"


def _gpu_words(node: NodeBrief) -> str:
    """The GPUs of a node in words: `8 x NVIDIA H100 fine`."""
    if not node.gpus:
        return node.gpu_note or "no GPU is known"
    names = sorted({gpu.name for gpu in node.gpus if gpu.name}) or ["GPU"]
    states: dict[str, list[int]] = {}
    for gpu in node.gpus:
        states.setdefault(gpu.state, []).append(gpu.index)
    if set(states) == {"healthy"}:
        words = "fine"
    elif set(states) == {"unknown"}:
        words = "health not known"
    else:
        odd = ((state, some) for state, some in sorted(states.items()) if state != "healthy")
        words = ", ".join(f"{_indices(some)} {state}" for state, some in odd)
    return clean(f"{len(node.gpus)} x {' and '.join(names)} {words}", 300)


def _indices(indices: Sequence[int]) -> str:
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {','.join(map(str, indices))}"


def _use_words(gpus: Sequence[GpuBrief]) -> str:
    """Least and most of what GPUs do: `busy 91-99 %, memory 61-63 GiB, power 600-680 W, 55-61 °C`."""
    spans = (
        ("busy ", [100 * one.busy for one in gpus if one.busy is not None], " %"),
        ("memory ", [one.memory_used / GIB for one in gpus if one.memory_used is not None], " GiB"),
        ("power ", [one.watts for one in gpus if one.watts is not None], " W"),
        ("", [one.celsius for one in gpus if one.celsius is not None], " °C"),
    )
    return ", ".join(f"{name}{_span(values)}{unit}" for name, values, unit in spans if values)


def _span(values: Sequence[float]) -> str:
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return least if least == most else f"{least}-{most}"


def _sum(nodes: Sequence[NodeBrief]) -> str:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    bad = sum(gpu.state not in GOOD for gpu in gpus)
    return f"{plural(len(gpus), 'GPU')}, {f'{bad} not fine' if bad else 'nothing wrong with them'}"
