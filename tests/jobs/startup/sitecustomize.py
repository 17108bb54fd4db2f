"""PyTorch without what a small job never uses: on PYTHONPATH of the tests' jobs, it takes a third off the import of each rank and launcher.

Decompositions and shapes of tensors without data are for its compiler. They come when somebody asks for something in them.
"""

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

FIRST, LAST = "torch._C", "torch._native"  # of what `import torch` imports
LATER = ("torch._decomp", "torch._meta_registrations", "torch.export", LAST)
# Whoever begins with these finds a circle of imports, unless all of LATER is there
USERS = frozenset(("torch._dynamo", "torch._prims"))


class Later:
    """Finds the modules of LATER as others would; their code runs at the first use."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == FIRST:
            gc.disable()  # all of it stays: not to look through it again and again is a tenth of the time
        if name in USERS:
            come()
        if name not in LATER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        if name == LAST:
            complete()
        return spec


def come() -> None:
    """Run what has been put off: it does so as an attribute is asked for."""
    for module in filter(None, map(sys.modules.get, LATER)):
        module.__doc__  # noqa: B018


def complete() -> None:
    """At the end of `import torch`: what random numbers need of `torch._decomp`."""
    base, core = sys.modules["torch._opaque_base"], sys.modules[FIRST]
    core._set_generator_metaclass(base.OpaqueBaseMeta)  # type: ignore[attr-defined]
    gc.freeze()
    gc.enable()


sys.meta_path.insert(0, Later)
