"""What the tests' jobs import of PyTorch (tests/jobs/startup): no compiler until one is asked for, and stacks as without it."""

import subprocess
import sys
from pathlib import Path

import pytest

from processes.harness import clean_environment, environment_of_jobs
from processes.needs import need_torch

need_torch("the jobs train with PyTorch")

STEP = """
import sys, traceback, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("torch._dynamo.eval_frame" in sys.modules)
"""
QUESTIONS = {
    "compile": "print(torch.compile(lambda x: x * 2, backend='eager')(torch.ones(1)).item())",
    "a part": "from torch._dynamo.utils import counters; print(type(counters).__name__)",
}


def output_of(code: str, environment: dict[str, str]) -> list[str]:
    argv = [sys.executable, "-c", STEP + code]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("what", "right"), [("compile", "2.0"), ("a part", "defaultdict")])
def test_the_compiler_comes_when_it_is_asked_for(what: str, right: str, tmp_path: Path) -> None:
    code = f"{QUESTIONS[what]}\nprint('torch._dynamo.eval_frame' in sys.modules)"
    assert output_of(code, environment_of_jobs(tmp_path)) == ["False", right, "True"]


def test_what_no_job_uses_comes_when_it_is_asked_for(tmp_path: Path) -> None:
    code = """
names = ("torch.distributions.normal", "torch.ao.quantization.qconfig", "torch.masked.maskedtensor")
print(*(one in sys.modules for one in names))
print(torch.distributions.Normal(torch.zeros(1), 1).mean.item(), torch.masked.sum(torch.ones(2)).item())
print(torch.quantization.default_qconfig is not None, torch.nn.quantized.Linear(2, 2).in_features)
import inspect
print(inspect.getmodule(sys._getframe()).__name__, inspect.getmodule(torch.nn.Linear).__name__)
"""
    false, *right = output_of(code, environment_of_jobs(tmp_path))
    assert false == "False"
    expected = ["False False False", "0.0 2.0", "True 2", "__main__ torch.nn.modules.linear"]
    assert right == expected


def test_what_is_not_compiled_stands_in_stacks_as_with_the_compiler(tmp_path: Path) -> None:
    code = "torch._disable_dynamo(lambda: [print(one.name, one.filename) for one in traceback.extract_stack()])()"
    light, *calls = output_of(code, environment_of_jobs(tmp_path))
    whole, *right = output_of(code, clean_environment(tmp_path))
    assert (light, whole) == ("False", "True")
    assert calls == right
    assert any(one.startswith("_fn ") for one in calls)
