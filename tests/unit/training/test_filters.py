"""Which code is followed: packages by the name they are imported as, whatever they are installed like."""

import os
import textwrap
from pathlib import Path

import pytest

from mldebug.cli.main import main
from mldebug_training.tracing.filters import Code, CodeFilter, folders
from shared.capture.ringwords import Words
from unit.training.test_tracer import AGENTS, run


def code(module: str, path: str, function: str = "function") -> Code:
    """Of a function with this name in such a module."""
    text = compile(f"def {function}(): pass", path, "exec")
    inner = next(one for one in text.co_consts if hasattr(one, "co_code"))
    return Code(inner, {"__name__": module, "__file__": path})


SITE = next(one for one in folders() if one.endswith("site-packages/"))
STANDARD = os.path.dirname(os.__file__)
TORCH = code("torch.nn.functional", f"{SITE}torch/nn/functional.py")
PIL = code("PIL.Image", f"{SITE}PIL/Image.py")
JSON = code("json.decoder", f"{STANDARD}/json/decoder.py")
MINE = code("train", "/data/project/train.py", "train_step")
EDITABLE = code("mine.model", "/home/me/src/mine/model.py")
FROZEN = Code(compile("0", "<frozen importlib._bootstrap>", "exec"), {"__name__": "importlib"})
GENERATED = Code(
    compile("0", "<string>", "exec"), {"__name__": "train", "__file__": "/data/train.py"}
)
OURS = code("mldebug_training.hook.steps", f"{AGENTS}/mldebug_training/hook/steps.py")
EVERY = [TORCH, PIL, JSON, MINE, EDITABLE, FROZEN, GENERATED]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["PIL"], [], [PIL]),
        (["torch"], [], [TORCH]),
        (["torch.nn"], [], [TORCH]),
        (["torch.n"], [], []),
        (["mine"], [], [EDITABLE]),
        (["uninstalled"], [], [MINE, EDITABLE, GENERATED]),
        (["uninstalled", "PIL"], ["mine"], [PIL, MINE, GENERATED]),
        (["everything"], [], EVERY),
        (["everything"], ["torch", "json", "/home/me"], [PIL, MINE, FROZEN, GENERATED]),
        (["/data/project"], [], [MINE]),
        (["/data/project/train.py"], [], [MINE]),
        (["/data/pro/"], [], []),
        (["train:train_step"], [], [MINE]),
        (["train:train"], [], []),
        (["other:train_step"], [], []),
    ],
)
def test_words_mean_what_they_say(
    include: list[str], exclude: list[str], expected: list[Code]
) -> None:
    followed = CodeFilter(include, exclude)
    assert [one for one in EVERY if followed.follows(one)] == expected
    assert not followed.follows(OURS)


def test_a_word_that_means_nothing_is_refused() -> None:
    for word in ("", " torch", "torch "):
        with pytest.raises(ValueError, match="names no package"):
            CodeFilter([word])


def test_a_function_may_begin_it() -> None:
    assert CodeFilter([], start="train_step").begins(MINE)
    assert CodeFilter([], start="train:train_step").begins(MINE)
    assert not CodeFilter([], start="step").begins(MINE)
    assert not CodeFilter([], start="other:train_step").begins(MINE)


PROJECT = {
    "spaced/inner/model.py": "def spaced(): return 1",  # a namespace package: no __init__.py
    "site-packages/PIL/__init__.py": "",
    "site-packages/PIL/Image.py": "def new():\n    return check()\ndef check(): return 1",
    "site-packages/other.py": "def installed(): return 1",
    "elsewhere/editable/__init__.py": "def edited(): return 1",
    "site-packages/editable.pth": "",
}
USE = """
    import sys
    sys.path[:0] = ["site-packages", "elsewhere"]
    import json, PIL.Image, other, editable, spaced.inner.model
    def main():
        json.dumps({"a": [1]}, indent=1)
        PIL.Image.new()
        other.installed()
        editable.edited()
        spaced.inner.model.spaced()
    {begin}
    main()
    tracer.{end}
"""


def called(folder: Path, begin: str, end: str = "end()") -> set[str]:
    """What is in the ring of a program that calls one function of each kind of package."""
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = run(folder, textwrap.dedent(USE).replace("{begin}", begin).replace("{end}", end))
    assert (done.returncode, done.stderr) == (0, ""), done
    (ring,) = folder.glob("*.ring")
    return {one.function.rpartition(".")[2] for one in Words(ring).events}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ('"uninstalled"', {"main", "edited", "spaced"}),
        ('"PIL"', {"new", "check"}),
        ('"spaced"', {"spaced"}),
        ('"editable", "spaced.inner"', {"edited", "spaced"}),
        ('"PIL.Image:check"', {"check"}),
    ],
)
def test_packages_of_every_kind(tmp_path: Path, words: str, expected: set[str]) -> None:
    begin = f'tracer = trace({words}, ring="out.ring", size=1 << 20); tracer.begin()'
    assert called(tmp_path, begin) == expected


@pytest.mark.parametrize(
    ("arguments", "inside", "outside"),
    [
        ('packages_to_include="uninstalled"', {"main", "edited", "spaced"}, {"new", "dumps"}),
        ('packages_to_include=["PIL"]', {"main", "new", "check"}, {"installed", "dumps"}),
        ("", {"main", "new", "installed", "dumps"}, set()),
        ('ignoremods=["PIL"], log_pids=True', {"main", "dumps"}, {"new", "check"}),
        ('ignoredirs=["site-packages"]', {"main", "edited"}, {"new", "installed"}),
    ],
)
def test_the_arguments_of_nicer_trace_mean_what_they_say(
    tmp_path: Path, arguments: str, inside: set[str], outside: set[str]
) -> None:
    begin = f"tracer = NicerTrace({arguments}{', ' if arguments else ''}size=1 << 22); tracer.__enter__()"
    found = called(tmp_path, begin, "__exit__()")
    assert inside <= found
    assert not outside & found


def test_each_line_of_nicer_trace_may_tell_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
        def double(one): return 2 * one
        NicerTrace(packages_to_include="uninstalled", {}ring="out.ring", size=1 << 20).runfunc(double, 4)
    """
    for value, pids in (("log_pids=True, ", True), ("", False)):
        (tmp_path / "out.ring").unlink(missing_ok=True)
        assert run(tmp_path, code.replace("{}", value)).returncode == 0
        pid = Words(tmp_path / "out.ring").pid
        assert main(["trace", "show", str(tmp_path / "out.ring")]) == 0
        shown = capsys.readouterr().out.splitlines()
        line = next(one for one in shown if one.endswith("double"))
        assert line.startswith(f"{pid}: ") is pids, shown


def test_threads_that_runfunc_starts_and_those_before_it_are_traced(tmp_path: Path) -> None:
    """The seeds' one traced neither."""
    code = """
        import threading
        go, done = threading.Event(), threading.Event()
        def early():
            go.wait()
            works()
            done.set()
        def works(): return 1
        threading.Thread(target=early, name="before").start()
        def main():
            go.set()
            done.wait()
            one = threading.Thread(target=works, name="after")
            one.start()
            one.join()
        tracer = NicerTrace(packages_to_include="uninstalled", trace=0, ring="out.ring", size=1 << 20)
        tracer.runfunc(main)
    """
    assert run(tmp_path, code, writer="native").returncode == 0
    found = Words(tmp_path / "out.ring")
    assert found.reported("after", "call") == ["call works"]
    assert [one.strip() for one in found.reported("before", "call")] == ["call works"]


def test_nicer_trace_runs_and_refuses(tmp_path: Path) -> None:
    code = """
        def double(one): return 2 * one
        tracer = NicerTrace(1, 1, packages_to_include="uninstalled", size=1 << 20)
        assert tracer.runfunc(double, 4) == 8
        print(tracer.path)
        for wrong in ({"countfuncs": 1}, {"ignoredirs": ["/a"], "packages_to_include": ["b"]}):
            try:
                NicerTrace(**wrong)
            except ValueError:
                pass
            else:
                raise AssertionError(wrong)
    """
    done = run(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, ""), done
    (ring,) = tmp_path.glob(f"trace-{os.uname().nodename}-0-*.ring")
    assert Path(done.stdout.strip()) == ring
    assert Words(ring).reported("MainThread", "call", "line") == ["call double", " line double"]


def test_torch_alone_is_followed(tmp_path: Path) -> None:
    code = """
        import torch
        from torch import nn
        def train_step(model, data):
            return model(data).sum().backward()
        with trace("torch.nn", ring="out.ring", size=1 << 20) as tracer:
            train_step(nn.Linear(2, 2), torch.ones(1, 2))
    """
    done = run(tmp_path, code)
    assert done.returncode == 0, done
    events = Words(tmp_path / "out.ring").events
    assert {one.module.split(".")[:2] == ["torch", "nn"] for one in events} == {True}
    assert "Module._call_impl" in {one.function for one in events}


def test_compiled_code_is_what_it_was(tmp_path: Path) -> None:
    code = """
        import torch
        compiled = []
        def backend(graph, inputs):
            compiled.append(len(graph.graph.nodes))
            return graph.forward
        @torch.compile(backend=backend, fullgraph=True)
        def model(data):
            return inner(data) + 1
        def inner(data):
            return torch.sin(data) * 2
        plain = model(torch.ones(3))
        before = list(compiled)
        torch._dynamo.reset()
        with trace("uninstalled", ring="out.ring", size=1 << 20, native=NATIVE) as tracer:
            assert torch.equal(model(torch.ones(3)), plain)
            assert torch.equal(model(torch.ones(3)), plain)
        assert compiled == before * 2, compiled
    """
    for writer in ("native", "python"):
        done = run(tmp_path, code, "", writer)
        assert done.returncode == 0, done
        assert Words(tmp_path / "out.ring").events
        (tmp_path / "out.ring").unlink()
