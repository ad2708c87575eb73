"""NVRTC of the PyPI packages nvidia-cuda-nvrtc and nvidia-cuda-nvrtc-cu12, which PyTorch brings, too.

The C library looks into the folder FLASHKILN_CUDA_LIB, then beside itself, then where the system's loader does, then into
/usr/local/cuda/lib64. A package is installed for the very environment, to fit its driver, so it goes before the system's
toolkit: `use()` names its folder in FLASHKILN_CUDA_LIB, unless the user has named one.
"""
import ctypes
import os
from importlib.util import find_spec

# CUDA version -> where its package lies in the folder nvidia/, and the library there.
PACKAGES = {13: ("cu13/lib", "libnvrtc.so.13"), 12: ("cuda_nvrtc/lib", "libnvrtc.so.12")}


def installed():
    """{CUDA version: folder} of the packages installed; nothing is imported."""
    spec = find_spec("nvidia")
    found = {}
    for version, (folder, library) in PACKAGES.items():
        for root in spec.submodule_search_locations or () if spec else ():
            path = os.path.join(root, folder)
            if os.path.exists(os.path.join(path, library)):
                found.setdefault(version, path)
    return found


def driver_version():
    """CUDA version of the driver, as 13; None without a driver."""
    try:
        driver = ctypes.CDLL(os.environ.get("FLASHKILN_LIBCUDA") or "libcuda.so.1")
        version = ctypes.c_int()
        return None if driver.cuDriverGetVersion(ctypes.byref(version)) else version.value // 1000
    except (OSError, AttributeError):
        return None


def find():
    """The folder of an installed package's NVRTC, or None: of two, the newest whose code the driver loads."""
    found = installed()
    if len(found) > 1:
        driver = driver_version()
        fitting = [version for version in found if driver is None or version <= driver]
        return found[max(fitting or found)]
    return next(iter(found.values()), None)


def use():
    """Makes the C library look into `find()` first. Call it before the first kernel is compiled."""
    if not os.environ.get("FLASHKILN_CUDA_LIB"):
        folder = find()
        if folder:
            os.environ["FLASHKILN_CUDA_LIB"] = folder
