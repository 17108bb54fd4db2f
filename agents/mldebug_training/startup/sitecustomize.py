"""Found by Python at its start because this folder is on PYTHONPATH, and nothing else is in it.

Loads mldebug_training by its path, so that nothing beside it shadows a package of the job; then the sitecustomize that
would have been found without us. Nothing here may fail or print.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _arm() -> None:
    if "mldebug_training" not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        home = os.path.dirname(_HERE)
        spec = spec_from_file_location(
            "mldebug_training", os.path.join(home, "__init__.py"), submodule_search_locations=[home]
        )
        if spec is None or spec.loader is None:
            return
        module = sys.modules["mldebug_training"] = module_from_spec(spec)
        spec.loader.exec_module(module)
    from mldebug_training.hook import arm

    arm()


def _go_on() -> None:
    """Run the job's own sitecustomize in our place."""
    from importlib.machinery import PathFinder

    paths = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("MLDEBUG_HOOK") != "0":
    try:
        _arm()
    except Exception:
        sys.modules.pop("mldebug_training", None)
_go_on()
