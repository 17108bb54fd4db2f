"""How long tests wait for what must come, on this machine: a wait that ends later makes nothing wrong, a busy machine is no defect."""

import os

PATIENCE = float(
    os.environ.get("MLDEBUG_TEST_PATIENCE", "1")
)  # a factor; `.ci/run` shares two cores among five parts and sets 3
