"""The package of this tree, and a library that was built from it: $FLASHKILN_LIBRARY."""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))


@pytest.fixture(autouse=True)
def seed():
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
