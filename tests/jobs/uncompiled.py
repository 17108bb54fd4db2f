"""PyTorch without its compiler: the first optimizer of a process imports `torch._dynamo`, 800 modules, only to say that no step is compiled.

That is as much work as PyTorch itself, in each rank of each job. Not for jobs with DDP, whose frames lead through it, and
not where the hook looks: it minds what is compiled.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


def leave_out_the_compiler() -> None:
    """From now on nothing can be compiled in this process, and whoever asks finds that it is not."""
    module: Any = ModuleType("torch._dynamo")
    module.disable = lambda function, *_, **__: function
    module.graph_break = lambda: None
    module.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
    sys.modules["torch._dynamo"] = torch._dynamo = module
