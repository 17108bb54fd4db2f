"""The hook where it has nothing to do, or is there twice: nobody notices it."""

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mldebug_agents.jobs.job_start import environment, hook_folder
from mldebug_training.hook import ranks
from unit.training.test_hook import STEP, TELL, run, site, variables

__all__ = ["site"]
PROGRAM = TELL + "import torch\ntell()\n"


def output_of(argv: list[str], site: Path, **more: str) -> Any:
    """What the program told; it may neither fail nor write to stderr."""
    done = subprocess.run(
        argv, env=variables(site, **more), capture_output=True, text=True, timeout=60, check=False,
        cwd=site,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("words", "is_helper"),
    [
        ("python train.py", False),
        ("python -u -m train", False),
        ("python train.py --launcher torchrun --resume deepspeed.launcher", False),
        ("python /home/me/torchrun-examples/train.py", False),
        ("python -m torch.distributed.runner", False),
        ("python -c pass torchrun", False),
        ("python - torchrun", False),
        ("python", False),
        ("python /venv/bin/torchrun --nproc-per-node 2 train.py", True),
        ("python -W error -X dev -u -m torch.distributed.run train.py", True),
        ("python /venv/bin/mldebug run -- train.py", True),
        ("python -m mldebug run -- train.py", True),
        ("python -m mldebug_training -- train.py", True),
        ("python -um torch.distributed.run train.py", True),
        ("python /x/torch/distributed/run.py train.py", True),
        ("python -m accelerate.commands.launch train.py", True),
        ("python /venv/bin/accelerate launch train.py", True),
        ("python -u -m deepspeed.launcher.launch --world_info=x train.py", True),
        ("python -Werror -X dev -X faulthandler -I -c <spawn> --multiprocessing-fork", True),
        ("python -c <forkserver>", True),
        ("python -c <tracker>", True),
        ("python /x/torch/_inductor/compile_worker/__main__.py --pickler=x", True),
    ],
)
def test_launchers_and_workers_are_told_from_ranks(
    monkeypatch: pytest.MonkeyPatch, words: str, is_helper: bool
) -> None:
    code = {
        "<spawn>": "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)",
        "<forkserver>": "from multiprocessing.forkserver import main; main(5, 6, ['__main__'])",
        "<tracker>": "from multiprocessing.resource_tracker import main;main(3)",
    }
    monkeypatch.setattr(sys, "orig_argv", [code.get(word, word) for word in words.split()])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ranks.is_rank() is not is_helper


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_shall_not_look_does_not(site: Path, option: str) -> None:
    code = TELL + f"sys.path.insert(0, {str(site)!r}); import torch; tell()"
    assert output_of([sys.executable, option, "-c", code], site) == {"hook": False, "record": None}


def test_a_job_that_sets_the_path_itself_goes_without(site: Path) -> None:
    argv = ["sh", "-c", f'PYTHONPATH={site} exec {sys.executable} -c "$0"', PROGRAM]
    assert output_of(argv, site) == {"hook": False, "record": None}
    argv[2] = argv[2].replace(f"={site}", f"={site}:$PYTHONPATH")
    assert output_of(argv, site)["record"] is not None


def test_a_zipped_program_is_a_rank_like_any_other(site: Path) -> None:
    with zipfile.ZipFile(site / "train.pyz", "w") as archive:
        archive.writestr("__main__.py", PROGRAM)
    assert output_of([sys.executable, "train.pyz"], site)["record"] is not None


def test_a_virtual_environment_made_under_the_hook_works(site: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "inner"], env=variables(site), check=True,
        cwd=site, timeout=60,
    )  # fmt: skip
    result = output_of([str(site / "inner/bin/python"), "-c", PROGRAM], site)
    assert result["record"] is not None


def test_tools_beside_the_job_make_no_record(site: Path) -> None:
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TELL + 'tell()'!r}])"
    assert output_of([sys.executable, "-c", script], site)["record"] is None
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], env=variables(site), capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""


# --- what becomes the job -------------------------------------------------------------------------

WAYS = (("-m", "mldebug", "run", "--"), ("-m", "mldebug_training", "--"))
CALLER = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
signal.signal(signal.SIGHUP, signal.SIG_IGN)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def lines_of(words: list[str], env: dict[str, str]) -> list[str]:
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(done.stdout.splitlines())


@pytest.mark.parametrize("way", WAYS)
def test_the_job_has_the_signals_of_its_caller(site: Path, way: tuple[str, ...]) -> None:
    """Also where that is a rank under the hook, as below srun."""
    caller = [sys.executable, "-I", "-c", CALLER]
    job = ["/bin/grep", "^Sig[BIC]", "/proc/self/status"]
    bare = lines_of([*caller, *job], variables(site))
    assert len(bare) == 3
    assert lines_of([*caller, sys.executable, *way, *job], variables(site)) == bare


@pytest.mark.parametrize(
    "locale", [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "POSIX", "LANG": "C.UTF-8"}]
)
@pytest.mark.parametrize("way", WAYS)
def test_the_job_has_the_environment_of_its_caller_and_the_hook(
    site: Path, way: tuple[str, ...], locale: dict[str, str]
) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(site), **locale}
    found = lines_of([sys.executable, *way, "/usr/bin/env"], env)
    wanted = {**env, "PYTHONPATH": str(hook_folder())}
    assert found == sorted(f"{name}={one}" for name, one in wanted.items())


# --- Pythons that it is not for --------------------------------------------------------------------

OLDER = ("2.7", "3.6", "3.8")
OF_ANY_PYTHON = (
    *(ast.Module, ast.Expr, ast.Import, ast.ImportFrom, ast.alias, ast.If, ast.Try, ast.ExceptHandler),
    *(ast.Assign, ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List),
    *(ast.Call, ast.keyword, ast.Starred, ast.ListComp, ast.comprehension, ast.IfExp, ast.expr_context),
    *(ast.BoolOp, ast.boolop, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop),
)  # fmt: skip


def older(version: str) -> str:
    """Skip where this machine has none of that version."""
    known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    path = shutil.which(f"python{version}") if not known else str(known[-1])
    if path is None:
        pytest.skip(f"there is no Python {version} here")
    return path


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("version", OLDER)
def test_an_older_python_starts_as_without_us(site: Path, version: str, own: bool) -> None:
    if own:
        (site / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = 'yes'\n")
    text = "os.environ.get('SEEN', '') + str('mldebug_training' in sys.modules)"
    done = subprocess.run(
        [older(version), "-c", f"import os, sys; sys.stdout.write({text})"],
        env=variables(site, PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True, text=True, timeout=60, check=False, cwd=site,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("yes" if own else "") + "False"


def test_what_every_python_finds_is_written_as_every_python_reads_it() -> None:
    """Where no old one is at hand: by words that Python 2 had."""
    text = (hook_folder() / "sitecustomize.py").read_bytes().decode("ascii")
    nodes = list(ast.walk(ast.parse(text)))
    assert [ast.unparse(one) for one in nodes if not isinstance(one, OF_ANY_PYTHON)] == []
    starred = sum(isinstance(one, ast.Starred) for one in nodes)
    last = [one.args[-1] for one in nodes if isinstance(one, ast.Call) and one.args]
    assert sum(isinstance(one, ast.Starred) for one in last) == starred
    assert not [one for one in nodes if isinstance(one, ast.Name) and one.id == "print"]


# --- there twice ---------------------------------------------------------------------------------


def other_installation(site: Path) -> Path:
    copy = site / "elsewhere" / "mldebug_training"
    shutil.copytree(hook_folder().parent, copy)
    return copy / "startup"


@pytest.mark.parametrize("order", ["{a}:{b}", "{a}:{b}:{a}", "{a}:{a}:{b}"])
def test_two_installations_count_a_step_once(site: Path, order: str) -> None:
    (site / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = 'yes'\n")
    path = order.format(a=hook_folder(), b=other_installation(site)) + f":{site}"
    code = (
        TELL + textwrap.dedent(STEP) + "print(json.dumps([os.environ['SEEN'], own.record.beats]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**variables(site), "PYTHONPATH": path}, cwd=site,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1]) == ["yes", 5]


def test_armed_twice_it_counts_a_step_once(site: Path) -> None:
    """As by another sitecustomize that runs all that it finds."""
    code = "from mldebug_training.arm import arm; arm()\n" + textwrap.dedent(STEP)
    assert run(site, code + "tell(beats=own.record.beats)")["beats"] == 5


def test_one_that_calls_the_next_is_not_called_again(site: Path) -> None:
    """As ddtrace does, which stands before us on the path when it is started inside."""
    first = site / "first"
    first.mkdir()
    (first / "sitecustomize.py").write_text(
        textwrap.dedent("""
            import importlib.util, os, sys
            os.environ["CALLED"] = os.environ.get("CALLED", "") + "x"
            from importlib.machinery import PathFinder
            here = os.path.dirname(__file__)
            spec = PathFinder.find_spec("sitecustomize", [one for one in sys.path if one != here])
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        """)
    )
    (site / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'yes'\n")
    env = variables(site)
    env["PYTHONPATH"] = f"{first}:{env['PYTHONPATH']}"
    code = PROGRAM + "print(os.environ['CALLED'], os.environ['OWN'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60,
        check=False, cwd=site,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first_line, last = done.stdout.splitlines()
    assert json.loads(first_line)["record"] is not None
    assert last == "x yes"


def test_mldebug_run_inside_mldebug_run_stays_one(site: Path) -> None:
    once = environment({"PYTHONPATH": str(site)}, hook_folder())
    assert environment(once, hook_folder()) == once


# --- who only asks for torch ---------------------------------------------------------------------


def test_asking_whether_torch_is_there_does_not_lose_it(site: Path) -> None:
    """As transformers, accelerate and datasets do before they import it."""
    code = """
        import importlib.util
        for _ in range(2):
            spec = importlib.util.find_spec("torch")
        parts = [spec.loader.is_package("torch"), spec.loader.get_filename(), spec.origin]
        import torch
        tell(parts=parts, loader=type(torch.__spec__.loader).__name__)
    """
    done = run(site, code)
    assert done["record"] is not None
    assert done["parts"] == [True, *[str(site / "torch/__init__.py")] * 2]
    assert done["loader"] == "SourceFileLoader"


def test_an_import_that_fails_first_is_watched_the_second_time(site: Path) -> None:
    (site / "torch/__init__.py").write_text(
        "import os, torch.optim\nif os.environ.pop('BROKEN', ''): raise ImportError('no driver')\n"
    )
    code = """
        try:
            import torch
        except ImportError:
            sys.modules.pop("torch", None)
        import torch
        tell()
    """
    assert run(site, code, BROKEN="1")["record"] is not None
    assert os.environ.get("BROKEN") is None


@pytest.mark.parametrize("text", ["", "class GradScaler: pass", "GradScaler = None"])
def test_a_framework_of_another_version_does_no_harm(site: Path, text: str) -> None:
    for name in ("torch/amp/__init__.py", "torch/amp/grad_scaler.py"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
    assert run(site, "import torch.amp.grad_scaler; tell()")["record"] is not None
