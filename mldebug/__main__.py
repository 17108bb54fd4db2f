"""`python -m mldebug` is `mldebug`."""

import sys

from mldebug.cli import main

sys.exit(main())
