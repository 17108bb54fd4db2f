"""TAB in real shells: bash and zsh behind a terminal, fish by its own `complete -C`."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.system.hung import hung_mount, missing
from shared.system.patience import PATIENCE
from shared.system.terminal import CLEAR, PROMPT, Terminal, terminal

PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "bind 'set enable-bracketed-paste off'; source ~/mldebug.bash; "),
    "zsh": (["zsh", "-f", "-i"], "unsetopt promptsp; fpath+=~; autoload -U compinit; compinit -D -u; "),
}  # fmt: skip

BELL = "\x07"  # nothing fits
MAX_HANG = 10.0  # seconds, on a crowded machine, of what takes 0.7 and the start of Python


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file and a folder in it."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "page.html").touch()
    (folder / "folder").mkdir()
    return folder


def environment(home: Path) -> dict[str, str]:
    return {"PATH": PATH, "HOME": str(home), "TERM": "xterm", "PS1": PROMPT, "PROMPT": PROMPT, "LANG": "C.UTF-8"}  # fmt: skip


@pytest.fixture(scope="module", params=START)
def shell(request: pytest.FixtureRequest, home: Path) -> Iterator[Terminal]:
    """One that reads what `mldebug completion` prints from a file, as the help says."""
    argv, first = START[request.param]
    if not shutil.which(argv[0]):
        missing(f"needs {argv[0]}")
    script = home / ("_mldebug" if request.param == "zsh" else "mldebug.bash")
    with script.open("w") as file:
        subprocess.run([sys.executable, "-m", "mldebug", "completion", request.param], stdout=file, check=True)  # fmt: skip
    with terminal(argv, environment(home), str(home)) as here:
        here.type(f"{first}echo rea''dy\n", f"ready\\s+{PROMPT}")
        yield here


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("mldebug repo", "mldebug reports "),
        ("true; A=1 mldebug demo --fault st", "mldebug demo --fault stopped "),
        ("mldebug demo --fault=st", "mldebug demo --fault=stopped "),
        ("mldebug demo --html pa", "mldebug demo --html page.html "),
        ("mldebug demo --html=pa", "mldebug demo --html=page.html "),
        ("mldebug switch status --folder ", "mldebug switch status --folder folder/"),
        ("mldebug probe node --stages driver,ma", "mldebug probe node --stages driver,matmul "),
        ("mldebug run torchr", "mldebug run torchrun "),
        ("mldebug run torchrun pa", "mldebug run torchrun page.html "),
        ("mldebug completion z", "mldebug completion zsh "),
    ],
)
def test_one_candidate_is_typed_to_its_end(shell: Terminal, typed: str, line: str) -> None:
    shell.type(CLEAR + typed, f"{typed}$")
    assert shell.type("\t", f"{line.removeprefix(typed)[-5:]}$")


def test_several_are_listed_in_their_order(shell: Terminal) -> None:
    shell.type(f"{CLEAR}mldebug demo --fault ", "--fault $")
    shown = shell.type("\t\t", r"sleep\s+stopped\s+mismatch\s+fifo\s+loop\s+dead\s+lock")
    assert "Traceback" not in shown


def test_verbs_are_listed_and_zsh_says_what_they_do(
    shell: Terminal, request: pytest.FixtureRequest
) -> None:
    wanted = r"dump +-- Capture all ranks" if "[zsh" in request.node.name else "doctor +down +dump "
    shell.type(f"{CLEAR}mldebug d", "mldebug d$")
    shell.type("\t\t", wanted)


def test_a_state_dir_that_hangs_does_not_take_the_prompt(
    shell: Terminal, home: Path, tmp_path: Path
) -> None:
    with hung_mount(tmp_path) as mount:
        config = home / "c.yaml"
        config.write_text(f"agent: {{state_dir: {mount.target}}}\n")
        mount.hang()
        shell.type(f"{CLEAR}mldebug reports --config c.yaml show ", "show $")
        began = time.monotonic()
        shell.type("\t", BELL)
        assert time.monotonic() - began < MAX_HANG * PATIENCE


def test_fish_lists_with_sentences(home: Path) -> None:
    if not shutil.which("fish"):
        missing("needs fish")
    by_name = {line: fish(home, line) for line in ("mldebug repo", "mldebug demo --fault=st", "mldebug demo --html pa",
                                                "mldebug switch status --folder ", "mldebug doctor --g")}  # fmt: skip
    assert by_name == {
        "mldebug repo": ["reports\tList, show and export the reports on this node."],
        "mldebug demo --fault=st": ["--fault=stopped"],
        "mldebug demo --html pa": ["page.html"],
        "mldebug switch status --folder ": ["folder/\tDirectory"],
        "mldebug doctor --g": ["--gpus\tExamine the GPUs and the kernel log instead."],
    }


def fish(home: Path, line: str) -> list[str]:
    """What fish offers for a line, with the script where it looks for such files."""
    place = home / ".config/fish/completions/mldebug.fish"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w") as file:
        subprocess.run([sys.executable, "-m", "mldebug", "completion", "fish"], stdout=file, check=True)  # fmt: skip
    argv = ["fish", "-c", f"complete -C {line!r}"]
    done = subprocess.run(argv, env=environment(home), cwd=home, capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
    return [one.strip() for one in done.stdout.splitlines()]
