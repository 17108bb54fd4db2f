"""Python runs this file at its start, because its folder, which holds nothing else, is on PYTHONPATH.

On Python >= 3.9, unless MLDEBUG_HOOK=0, it loads mldebug_training by its path, so that nothing beside it shadows a package of the
job, and arms the hook; then it runs the job's own sitecustomize, whose errors pass on. Our part never fails or prints. Python 2
must be able to parse this file: no annotations, and no functions to annotate.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_HOME = os.path.dirname(_HERE)

if sys.version_info >= (3, 9) and os.environ.get("MLDEBUG_HOOK") != "0":
    try:
        if "mldebug_training" not in sys.modules:
            # importlib.util would cost three milliseconds
            _spec = sys.modules["_frozen_importlib_external"].spec_from_file_location(
                "mldebug_training",
                os.path.join(_HOME, "__init__.py"),
                submodule_search_locations=[_HOME],
            )
            _module = sys.modules["_frozen_importlib"].module_from_spec(_spec)
            sys.modules["mldebug_training"] = _module
            _spec.loader.exec_module(_module)
        from mldebug_training.arm import arm

        arm()
    except Exception:
        sys.modules.pop("mldebug_training", None)

# The job's own sitecustomize in our place: the next on the path, for one before us has run and called us. Another
# installation of ours is left out: one is enough, and two might call each other for ever.
_paths = [os.path.abspath(_path or ".") for _path in sys.path]
_paths = _paths[_paths.index(_HERE) + 1 :] if _HERE in _paths else _paths
_paths = [_path for _path in _paths if not _path.endswith("/mldebug_training/startup")]
if sys.version_info >= (3, 5):
    _spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", _paths)
    if _spec is not None and _spec.loader is not None:
        _module = sys.modules["_frozen_importlib"].module_from_spec(_spec)
        sys.modules["sitecustomize"] = _module
        _spec.loader.exec_module(_module)
else:
    import imp

    try:
        _found = imp.find_module("sitecustomize", _paths)
    except ImportError:
        _found = None
    if _found:
        imp.load_module("sitecustomize", *_found)
