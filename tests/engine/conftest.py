"""Tests of the engine run kernels of the card in Triton's interpreter too."""

import quick_interpreter  # noqa: F401  makes it quick
