"""`python -m mldebug` is `mldebug`."""

import sys

from mldebug.cli.main import main

sys.exit(main())
