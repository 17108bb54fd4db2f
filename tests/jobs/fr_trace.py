"""PyTorch's own analyser on one folder after the other: PREFIX FOLDER ... Before each it prints `# FOLDER`."""

import sys
import traceback

from torch.distributed.flight_recorder.fr_trace import main

for folder in sys.argv[2:]:
    print(f"# {folder}", flush=True)
    try:
        main(["--prefix", sys.argv[1], folder])
    except BaseException:  # noqa: BLE001 - an assertion of theirs is their answer
        traceback.print_exc(file=sys.stdout)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
