"""PyTorch without what a small job never uses: on PYTHONPATH of the tests' jobs, it takes two thirds off the start of each rank.

Decompositions and shapes of tensors without data are for its compiler; distributions, quantization, masked tensors and the help
texts of tensors no job here uses. They come when somebody asks for something in them. The compiler itself, which the first optimizer
of a process imports only to say that no step is compiled, is as much work as all the rest: a small module says the same in its
place, and becomes the compiler when somebody asks it for more.
"""

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader, spec_from_loader
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

FIRST, LAST = "torch._C", "torch._native"  # of what `import torch` imports
LATER = (
    "torch._decomp",
    "torch._meta_registrations",
    "torch._tensor_docs",
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.quantization",
    "pynvml",
    LAST,
)
COMPILER = "torch._dynamo"
# Whoever begins with these finds a circle of imports, unless all of LATER is there
USERS = ("torch._prims", "torch._refs")
# What stands in a stack around functions that are not to be compiled, under the name of the compiler's file
DISABLE = f"""{chr(10) * 1440}
def disable(fn=None, recursive=True, *, reason=None, wrapping=True):
    if fn is None:
        return lambda one: disable(one)

    def _fn(*args, **kwargs):
        return fn(*args, **kwargs)
    return _fn
"""


class Later:
    """Finds the modules of LATER as others would; their code runs at the first use."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in sys.modules and target is None:
            return loaded(name)  # its parent was in LATER, and has run by now
        if name == FIRST:
            find_modules_of_frames()
            gc.disable()  # all of it stays: not to look through it again and again is a tenth of the time
        if name in USERS:
            come()  # which may have brought it
            return loaded(name)
        if name == COMPILER:
            return NoCompiler.spec(path)
        if name.startswith(f"{COMPILER}."):
            return submodule(name)
        if name not in LATER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        if name == LAST:
            complete()
        return spec


def find_modules_of_frames() -> None:
    """Quickly: to find one, `inspect` looks up the real path of each module's file, and so loads what is to come later."""
    import inspect

    whole = inspect.getmodule

    def getmodule(thing: object, file: str | None = None) -> Any:
        found = None
        if isinstance(thing, FrameType):
            found = sys.modules.get(str(thing.f_globals.get("__name__")))
        return found or whole(thing, file)

    inspect.getmodule = getmodule


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


class NoCompiler:
    """Loads a module in place of `torch._dynamo` that answers what optimizers, groups and DDP ask it."""

    waiting: "NoCompiler | None" = None

    def __init__(self, real: Any) -> None:
        self.real, self.module = real, ModuleType(COMPILER)

    @classmethod
    def spec(cls, path: Sequence[str] | None) -> ModuleSpec | None:
        """As the compiler's own, but for the loader."""
        spec = PathFinder.find_spec(COMPILER, path)
        if spec is not None:
            cls.waiting = spec.loader = cls(spec.loader)  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's own."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it with what small jobs ask for; anything else makes the compiler of it."""
        self.module = module
        file = str(module.__file__).replace("__init__.py", "eval_frame.py")
        exec(compile(DISABLE, file, "exec"), vars(module))
        answers: dict[str, Any] = {
            "graph_break": lambda msg="": None,
            "is_compiling": lambda: False,
            "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
            "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
            "__getattr__": self.more,
        }
        vars(module).update(answers)

    def more(self, name: str) -> Any:
        """An attribute of the real one; importlib asks for some that hardly any module has."""
        if name.startswith("__"):
            raise AttributeError(name)
        self.become_real()
        return getattr(self.module, name)

    def become_real(self) -> None:
        """Once; in the same module, which others have by now."""
        type(self).waiting = None
        for name in ("__getattr__", "trace_rules", "utils"):
            vars(self.module).pop(name)
        come()
        self.module.__loader__ = self.real
        if self.module.__spec__ is not None:
            self.module.__spec__.loader = self.real
        self.real.exec_module(self.module)


def submodule(name: str) -> ModuleSpec | None:
    """Whoever imports a part of the compiler gets all of it; the part is then there, unless it comes by itself."""
    if NoCompiler.waiting is not None:
        NoCompiler.waiting.become_real()
    return loaded(name)


def loaded(name: str) -> ModuleSpec | None:
    """Of a module that is there, which must not run twice; nothing where it is not."""
    found = sys.modules.get(name)
    if found is None:
        return None
    spec = spec_from_loader(name, There(found))
    with suppress(AttributeError):  # of the compiler's settings
        found.__spec__ = spec  # importlib prefers it
    return spec


class There:
    """A loader of what is loaded."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, getattr(module, "__spec__", None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The one that is there."""
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """It has run; importlib has put its spec of this moment into it."""
        with suppress(AttributeError):
            module.__spec__ = self.spec


sys.meta_path.insert(0, Later)
