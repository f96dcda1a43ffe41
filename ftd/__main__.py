"""``python -m ftd``: the same as the ``ftd`` command."""

import sys

from ftd.cli.main import main

sys.exit(main())
