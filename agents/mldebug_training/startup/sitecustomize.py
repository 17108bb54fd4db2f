"""Found by Python at its start because this folder is on PYTHONPATH, and nothing else is in it.

Loads mldebug_training by its path, so that nothing beside it shadows a package of the job; then the sitecustomize that
would have been found without us. Nothing here may fail or print.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_machinery = sys.modules[
    "_frozen_importlib_external"
]  # importlib.util would cost three milliseconds
_make = sys.modules["_frozen_importlib"].module_from_spec


def _arm() -> None:
    if "mldebug_training" not in sys.modules:
        home = os.path.dirname(_HERE)
        file = os.path.join(home, "__init__.py")
        spec = _machinery.spec_from_file_location(
            "mldebug_training", file, submodule_search_locations=[home]
        )
        module = sys.modules["mldebug_training"] = _make(spec)
        spec.loader.exec_module(module)
    from mldebug_training.hook import arm

    arm()


def _go_on() -> None:
    """Run the job's own sitecustomize in our place: the next on the path, for one before us has run and called us.

    Another installation of ours is left out: one is enough, and two might call each other for ever.
    """
    paths = [os.path.abspath(path or ".") for path in sys.path]
    paths = paths[paths.index(_HERE) + 1 :] if _HERE in paths else paths
    paths = [path for path in paths if not path.endswith("/mldebug_training/startup")]
    spec = _machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = _make(spec)
        spec.loader.exec_module(module)


if os.environ.get("MLDEBUG_HOOK") != "0":
    try:
        _arm()
    except Exception:
        sys.modules.pop("mldebug_training", None)
_go_on()
