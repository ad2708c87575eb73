"""The C interface by ctypes is the Python package's: this finds it in the source tree."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))

from flashkiln._capi import Library  # noqa: E402,F401
