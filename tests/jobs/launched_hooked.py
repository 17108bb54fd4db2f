"""launched.py under `mldebug run`: each rank tells one step by the hook, without PyTorch.

usage: launched_hooked.py FOLDER, which holds launched.py
"""

import launched

from mldebug_training import heartbeat  # the hook has brought it

STEP = 7

if __name__ == "__main__":
    heartbeat(STEP)
    launched.main()
