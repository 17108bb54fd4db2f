"""docs/runbooks/: every command can be typed as it stands: options and arguments are parsed by mldebug itself, `jq` finds what it asks for."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mldebug.status.snapshot import Snapshot
from shared.deploy.series import FOLDER
from shared.docs.typed import parse

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs/runbooks"
PAGES = [*sorted(RUNBOOKS.glob("Mldebug*.md")), ROOT / "docs/kubernetes.md", FOLDER / "alerts.yaml"]
PLACE = "README.md#how-to-type-these-commands"
ON_A_NODE = r"^\$ .*\b(mldebug|systemctl|journalctl|dmesg|nvidia-smi)\b"


def commands(text: str) -> Iterator[str]:
    """Each `mldebug …` of a page, in a line of a terminal or between backticks; not the names of files and pods."""
    for line in re.findall(r"^\$ (.*)$|^(kubectl .*)$", text, re.MULTILINE):
        for part in re.split(r"[;|&]+| #.*| -- ", "".join(line)):
            if part.strip().startswith("mldebug "):
                yield part.strip()
    yield from re.findall(r"`(mldebug [a-z][^`]*)`", " ".join(text.split()))


def all_commands() -> list[tuple[str, str]]:
    return sorted({(file.stem, one) for file in PAGES for one in commands(file.read_text("utf-8"))})


@pytest.mark.parametrize(("page", "command"), all_commands())
def test_a_command_can_be_typed_as_it_stands(page: str, command: str) -> None:
    parse(command)


def test_commands_are_found_and_wrong_ones_are_seen() -> None:
    assert len(all_commands()) > 40
    with pytest.raises(click.UsageError):
        parse("mldebug status --sources")


def test_jq_asks_for_what_the_agent_tells() -> None:
    matching = [one for file in PAGES for one in re.findall(r"--json \| jq '([^']*)'", file.read_text("utf-8"))]  # fmt: skip
    assert matching
    for path in matching:
        agent, field = re.findall(r"\.(\w+)", path)[:2]
        assert agent == "agent"
        assert field in Snapshot.__struct_fields__


@pytest.mark.parametrize("page", PAGES[:-2], ids=lambda file: file.stem)
def test_whoever_has_pods_is_told_how_to_type_it(page: Path) -> None:
    first = page.read_text("utf-8").split("## ")[1]
    wanted = bool(re.search(ON_A_NODE, first, re.MULTILINE))
    assert (PLACE in first) == wanted
    assert "\n## How to type these commands\n" in (RUNBOOKS / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("page", "reset"),
    [
        ("MldebugGpuMemoryErrors", "--gpu-reset"),
        ("MldebugGpuUnhealthy", "--gpu-reset"),
        ("MldebugGpuXidFatal", "--gpu-reset"),
        ("MldebugNvlinkDown", "--gpu-reset"),
        ("MldebugGpuMissing", "Reboot"),
    ],
)
def test_a_broken_gpu_is_reset_tried_and_returned(page: str, reset: str) -> None:
    """NVIDIA's guide to debugging GPUs: reset it, run DCGM's diagnosis before it takes jobs again, return what fails there."""
    text = (RUNBOOKS / f"{page}.md").read_text("utf-8")

    assert [one for one in (reset, "`dcgmi diag -r ", "RMA") if one not in text] == []
