"""What the command line of a launcher says of the nodes for which it waits, and of the script that it will start.

Read as `argparse` does: `--rdzv-id 7`, `--rdzv_id=7`, the last of several counts. torchrun takes
from variables like `PET_RDZV_ID` what is not on its command line.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mldebug.core.model import NodeWait
from mldebug.core.redact import clean
from mldebug_agents.jobs.launcher import ClaimVariables, PendingLaunch

MAX_NODES = 65_536
MAX_WORDS = 256  # of a command line
FLAGS = frozenset(
    (
        *("standalone", "module", "no-python", "run-path", "virtual-local-rank", "multi-gpu"),
        *("use-env", "multi-node", "cpu", "use-deepspeed", "use-fsdp", "debug", "quiet", "m", "q"),
        *("dynamo-use-dynamic", "dynamo-use-fullgraph", "use-megatron-lm", "tpu", "use-xpu"),
    )
)
"""Options that take no value: the word after them is not theirs."""
MODULE = frozenset(("m", "module"))


class OptionNames(NamedTuple):
    """The names of one launcher's options, with `-` between words and no leading dashes; "" for an option that the launcher
    lacks. `prefix`: how the names of the environment variables begin that may stand in for the options.
    """

    nodes: str
    rendezvous: str
    endpoint: str
    run_id: str
    address: str
    port: str
    alone: str
    prefix: str


class LauncherOptions:
    """The options on one launcher's command line, and its `script`. `argv[0]` is the interpreter."""

    def __init__(
        self, argv: tuple[str, ...], environ: Mapping[str, str], names: OptionNames
    ) -> None:
        self.names = names
        self.environ = environ
        self._given: dict[str, str] = {}
        self.script = ""  # the training script's name, or its module; "" where it cannot be told
        words = iter(argv[1:MAX_WORDS])
        for word in _own_words(words):
            self._take(word, words)
            if self.script:
                break

    def value(self, name: str) -> str:
        """The value of an option from the command line, else from its variable; "" where neither has it."""
        variable = f"{self.names.prefix}{name.replace('-', '_').upper()}"
        found = self.environ.get(variable, "") if self.names.prefix and name else ""
        return self._given.get(name, found) if name else ""

    def _take(self, word: str, words: Iterator[str]) -> None:
        name, has_value, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not word.startswith("-"):
            self.script = clean(
                word if self._given.keys() & MODULE else word.rpartition("/")[2], 80
            )
        elif has_value or name in FLAGS:
            self._given[name] = value if has_value else "1"
        else:
            self._given[name] = next(words, "")


def _own_words(words: Iterator[str]) -> Iterator[str]:
    """The words behind the launcher's own name: `-m torch.distributed.run`, `/usr/bin/torchrun`, `accelerate launch`."""
    for word in words:
        if word.endswith("m") and word.startswith("-") and not word.startswith("--"):
            next(words, None)
            break
        if not word.startswith("-"):
            break
    first = next(words, None)
    if first is not None and first != "launch":
        yield first
    yield from words


def pending_launch(launcher: str, options: LauncherOptions) -> PendingLaunch | None:
    """For which nodes a launcher with these options waits.

    None for one node, or where nothing says how many it needs.
    """
    names = options.names
    least = options.value(names.nodes).partition(":")[0].strip()
    alone = options.value(names.alone).lower() not in ("", "0", "false", "no")
    if alone or not least.isdecimal() or not 1 < int(least[:9]) <= MAX_NODES:
        return None
    address, port = options.value(names.address), options.value(names.port)
    endpoint = options.value(names.endpoint) or (f"{address}:{port or '29500'}" if address else "")
    wait = NodeWait(
        nodes=int(least),
        rendezvous=clean(options.value(names.rendezvous) or "static", 20),
        endpoint=clean(endpoint, 120),
        run_id=clean(options.value(names.run_id), 80),
    )
    nodes, _ = ClaimVariables(options.environ).node_list(wait.nodes, 1)
    return PendingLaunch(launcher=launcher, script=options.script, wait=wait, node_list=nodes)
