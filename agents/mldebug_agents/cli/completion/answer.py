"""What one TAB prints: a line for each candidate, `TYPE, tab, VALUE, tab, SENTENCE`. `mldebug.cli` swallows errors.

zsh and fish give the words as arguments. bash gives its line, and the piece of the last word that it will replace.
"""

import sys
from collections.abc import Sequence

from click.shell_completion import CompletionItem, split_arg_string

from mldebug_agents.cli.completion.side_child import look_aside
from mldebug_agents.cli.completion.skeleton import candidates
from mldebug_agents.cli.completion.table import read_table


def complete(shell: str, arguments: Sequence[str]) -> None:
    """Print the candidates for what stands on the command line."""
    told = "".join(f"{line}\n" for line in lines(shell, list(arguments)))
    sys.stdout.write(told)
    sys.stdout.flush()


def lines(shell: str, arguments: list[str]) -> list[str]:
    """The lines for this shell; bash shows no sentences."""
    line, piece = (*arguments, "", "")[:2]
    words = split(line) if shell == "bash" else arguments
    found = candidates(read_table(), words, look_aside, described=shell != "bash")
    word = words[-1] if words else ""
    option = word[: word.find("=") + 1] if word.startswith("--") else ""
    cut = word.removesuffix(piece) if shell == "bash" else ""
    return [_line(one, option, cut) for one in found]


def split(line: str) -> list[str]:
    """The words behind the program's name; the last one is begun, perhaps empty."""
    words = split_arg_string(line)
    return [*words[1:], *([""] if line[-1:].isspace() else [])]


def _line(one: CompletionItem, option: str, cut: str) -> str:
    sentence = (one.help or "").replace("\t", " ").replace("\n", " ")
    word = one.value if one.value.startswith("--") else option + one.value
    return f"{one.type}\t{word.removeprefix(cut)}\t{sentence}"
