"""Arrays in a GPU's memory without a framework: what comes back to libraries that only lend their arrays (Numba) or do not
let theirs be written to (JAX). Other libraries take them by DLPack or __cuda_array_interface__, NumPy by copying."""
from __future__ import annotations

import ctypes
import functools
import math
import os
import weakref
from ctypes import c_size_t, c_void_p

import numpy

from . import _dlpack, _runtime
from ._capi import library
from ._dlpack import View, contiguous
from .errors import BadArgument, NoDevice, Unsupported

LEGACY_STREAM = 1  # its name in DLPack and in __cuda_array_interface__


class DeviceArray:
    """An array on `device`, "cuda:N". shape, dtype (a string) and strides, in elements, as usual."""

    def __init__(self, view, device):
        self.view, self.device, self.shape, self.strides, self.dtype = view, device, view.shape, view.strides, view.dtype

    def __repr__(self):
        return f"DeviceArray({list(self.shape)}, {self.dtype}, {self.device})"

    def __array__(self, dtype=None, copy=None):
        """A copy on the host; bfloat16, which NumPy lacks, as float32."""
        x = widened(to_host(self), self.dtype)
        return x if dtype is None else x.astype(dtype)

    @property
    def __cuda_array_interface__(self):
        if self.device == "emu" or self.dtype == "bfloat16":
            raise AttributeError(f"__cuda_array_interface__ has no {self.dtype} on {self.device}")
        kind = numpy.dtype(self.dtype)
        return {"shape": self.shape, "strides": tuple(s * kind.itemsize for s in self.strides), "typestr": kind.str,
                "data": (self.view.pointer, False), "version": 3, "stream": LEGACY_STREAM}

    def __dlpack_device__(self):
        return (_dlpack.CPU, 0) if self.device == "emu" else (_dlpack.CUDA, int(self.device.partition(":")[2]))

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Waits until the array is there, unless the stream that takes it waits itself, or needs no wait (-1)."""
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"an array is on DLPack device {self.__dlpack_device__()}; it is not given on {tuple(dl_device)}")
        if copy:
            return to_device(to_host(self), self.dtype, self.device).__dlpack__(stream=stream)
        if self.device != "emu" and stream not in (LEGACY_STREAM, -1):
            library()("fk_synchronize", _runtime.device(self.device).context, None)
        return _dlpack.capsule(self.view, self.__dlpack_device__())

    def reshape(self, *shape):
        """The same memory, for added dimensions of 1 or a contiguous array."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        added = len(shape) - len(self.shape)
        if added >= 0 and shape == (1,) * added + self.shape:
            strides = (0,) * added + self.strides
        elif self.strides == contiguous(self.shape) and math.prod(shape) == math.prod(self.shape):
            strides = contiguous(shape)
        else:
            raise BadArgument(f"an array has shape {self.shape}; it cannot be taken as {shape} without a copy")
        return DeviceArray(self.view._replace(shape=tuple(shape), strides=strides), self.device)

    def narrow(self, dim):
        """The first elements of the last dimension."""
        return DeviceArray(self.view._replace(shape=(*self.shape[:-1], dim)), self.device)


# ---- memory ----------------------------------------------------------------------------------------------------------

class Memory:
    """Bytes on a device, freed with the last reference."""

    def __init__(self, device, size):
        context, out = _runtime.device(device).context, c_void_p()
        library()("fk_device_malloc", context, c_size_t(max(size, 1)), ctypes.byref(out))
        self.pointer = out.value
        weakref.finalize(self, library().lib.fk_device_free, context, out).atexit = False


def itemsize(dtype):
    return 2 if dtype == "bfloat16" else numpy.dtype(dtype).itemsize


def empty(shape, dtype, device):
    memory = Memory(device, math.prod(shape) * itemsize(dtype))
    return DeviceArray(View(memory.pointer, tuple(shape), contiguous(shape), dtype, memory), device)


def to_device(x, dtype, device):
    """Copies a NumPy array, whose bits are those of `dtype`."""
    x = numpy.ascontiguousarray(x)
    out = empty(x.shape, dtype, device)
    library()("fk_copy_to_device", _runtime.device(device).context, c_void_p(out.view.pointer), c_void_p(x.ctypes.data),
              c_size_t(x.nbytes))
    return out


def to_host(x):
    """A NumPy copy of a DeviceArray; bfloat16 as the bits in uint16."""
    kind = numpy.dtype("uint16" if x.dtype == "bfloat16" else x.dtype)
    if 0 in x.shape:
        return numpy.empty(x.shape, kind)
    steps = [(size - 1) * stride for size, stride in zip(x.shape, x.strides)]
    first, last = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
    flat = numpy.empty(last - first + 1, kind)
    library()("fk_copy_from_device", _runtime.device(x.device).context, c_void_p(flat.ctypes.data),
              c_void_p(x.view.pointer + first * kind.itemsize), c_size_t(flat.nbytes))
    strides = [stride * kind.itemsize for stride in x.strides]
    return numpy.lib.stride_tricks.as_strided(flat[-first:], x.shape, strides).copy()


def widened(x, dtype):
    """NumPy's copy of an array of `dtype`, bfloat16 made float32."""
    return (x.astype(numpy.uint32) << 16).view(numpy.float32) if dtype == "bfloat16" else x


# ---- arrays of others ------------------------------------------------------------------------------------------------

def borrow(x):
    """The DeviceArray that lies where x lies, whose library is unknown."""
    if isinstance(x, DeviceArray):
        return x
    if hasattr(x, "__dlpack__"):
        kind, number = map(int, x.__dlpack_device__())
        if kind in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
            return DeviceArray(_dlpack.read(x), f"cuda:{number}")
        if kind in (_dlpack.CPU, _dlpack.CUDA_HOST):
            return DeviceArray(_dlpack.read(x), "emu")
        raise Unsupported(f"an array is on DLPack device type {kind}; it must be on the CPU (1) or a CUDA GPU (2)")
    return from_interface(x, x.__cuda_array_interface__)


def from_interface(x, said):
    """By __cuda_array_interface__, which says the stream to wait for, and not the GPU."""
    kind = numpy.dtype(said["typestr"])
    strides = said.get("strides") or [s * kind.itemsize for s in contiguous(said["shape"])]
    if any(s % kind.itemsize for s in strides):
        raise BadArgument(f"an array has strides of {tuple(strides)} bytes; they must be multiples of {kind.itemsize}")
    pointer, stream = said["data"][0], said.get("stream")
    device = f"cuda:{ordinal(pointer)}"
    if stream not in (None, LEGACY_STREAM):
        library()("fk_synchronize", _runtime.device(device).context, c_void_p(stream))
    return DeviceArray(View(pointer, tuple(said["shape"]), tuple(s // kind.itemsize for s in strides), kind.name, x), device)


@functools.lru_cache(maxsize=None)
def driver():
    try:
        return ctypes.CDLL(os.environ.get("FLASHKILN_LIBCUDA") or "libcuda.so.1")
    except OSError as error:
        raise NoDevice(f"an array is on a GPU, but there is no driver: {error}") from None


def ordinal(pointer):
    """The GPU that memory belongs to; 0 for none at all, as of an empty array."""
    number, attribute = ctypes.c_int(), 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    if pointer and driver().cuPointerGetAttribute(ctypes.byref(number), attribute, ctypes.c_uint64(pointer)):
        raise NoDevice(f"no GPU knows the memory of an array at {pointer:#x}")
    return number.value
