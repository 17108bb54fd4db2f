"""Starts a script of this folder; its files are imported as a package, whatever else the folder above contains."""

import importlib
import json
import os
import sys


def main() -> None:
    """Run the script that the first argument names, with the order (JSON) in the second."""
    here = os.path.dirname(os.path.realpath(__file__))
    above = os.path.dirname(here)
    sys.path[:] = [path for path in sys.path if os.path.realpath(path or ".") not in (here, above)]
    sys.path.insert(0, above)
    importlib.import_module("inside")
    sys.path.remove(above)  # what lies there must not hide modules of others
    script = importlib.import_module("inside." + sys.argv[1])
    script.main(json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
