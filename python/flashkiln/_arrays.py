"""Array libraries, as attention sees them: how to read an array where it lies, convert it, and make new ones."""
from __future__ import annotations

import sys

import numpy

from . import _device_array
from ._device_array import DeviceArray
from ._dlpack import View
from .errors import BadArgument, Unsupported


class NumPy:
    """NumPy's arrays, which the emulator reads. Others of its interface differ by what a subclass says."""
    device, stream, xp = "emu", None, numpy

    def array(self, x, dtype=None):
        """x, converted if need be; also from lists."""
        return as_int32(self.xp, x) if dtype == "int32" else self.xp.asarray(x, dtype=dtype)

    def view(self, x):
        size = x.dtype.itemsize
        if any(s % size for s in x.strides) or not x.dtype.isnative:
            raise BadArgument(f"an array of {x.dtype} has strides of {x.strides} bytes; it must be of native byte order and "
                              "whole elements")
        return View(self.pointer(x), x.shape, tuple(s // size for s in x.strides), x.dtype.name, x)

    @staticmethod
    def pointer(x):
        return x.ctypes.data

    def copy(self, x, width=None):
        """A contiguous copy, with zeros behind up to `width`."""
        out = self.xp.zeros((*x.shape[:-1], width or x.shape[-1]), x.dtype)
        out[..., :x.shape[-1]] = x
        return out

    def new(self, shape, like, value=None):
        """An array to be written; like: its dtype, or an array of it."""
        dtype = getattr(like, "dtype", like)
        return self.xp.empty(shape, dtype) if value is None else self.xp.full(shape, value, dtype)

    def result(self, x, dim=None):
        """What the caller gets of such an array: the first `dim` of each row."""
        return x if dim is None else x[..., :dim]


class CuPy(NumPy):
    """CuPy's arrays, on the stream that is current."""

    def __init__(self, q):
        import cupy
        self.xp, self.place, self.device = cupy, q.device, f"cuda:{q.device.id}"
        with self.place:
            self.stream = cupy.cuda.get_current_stream().ptr or None

    def array(self, x, dtype=None):
        if isinstance(x, self.xp.ndarray):
            check_device(f"cuda:{x.device.id}", self.device)
        with self.place:
            return super().array(x, dtype)

    @staticmethod
    def pointer(x):
        return x.data.ptr

    def copy(self, x, width=None):
        with self.place:
            return super().copy(x, width)

    def new(self, shape, like, value=None):
        with self.place:
            return super().new(shape, like, value)


class JaxOnHost(NumPy):
    """JAX's arrays on the CPU are NumPy's on the way in; the results are new arrays where q is."""

    def __init__(self, q):
        self.place = next(iter(q.devices()))

    def result(self, x, dim=None):
        import jax
        return jax.device_put(super().result(x, dim), self.place)


class OnHost(NumPy):
    """Any other library's arrays in the CPU's memory; the results are NumPy's."""

    def array(self, x, dtype=None):
        return super().array(x if hasattr(x, "__array__") or not shares(x) else numpy.from_dlpack(x), dtype)


class Lent:
    """Arrays of a library that only lends them. Results lie in memory of our own; what must be converted goes through the
    host, which small arrays and odd strides and head dims need."""
    stream = None

    def __init__(self, q):
        self.device = self.borrow(q).device

    def borrow(self, x):
        return _device_array.borrow(x)

    def array(self, x, dtype=None):
        if not isinstance(x, DeviceArray) and not shares(x):
            x = numpy.asarray(x)
            x = as_int32(numpy, x) if "int32" in (dtype, x.dtype.name.replace("64", "32")) else x.astype(
                {"float64": "float32"}.get(x.dtype.name, x.dtype), copy=False)
            return _device_array.to_device(x if dtype is None else x.astype(dtype), dtype or x.dtype.name, self.device)
        x = self.borrow(x)
        check_device(x.device, self.device)
        if dtype in (None, x.dtype):
            return x
        x = numpy.asarray(x)
        return _device_array.to_device(as_int32(numpy, x) if dtype == "int32" else x.astype(dtype), dtype, self.device)

    def view(self, x):
        return x.view

    def copy(self, x, width=None):
        return _device_array.to_device(NumPy().copy(_device_array.to_host(x), width), x.dtype, self.device)

    def new(self, shape, like, value=None):
        dtype = getattr(like, "dtype", like)
        if value is None:
            return _device_array.empty(shape, dtype, self.device)
        bits = "uint16" if dtype == "bfloat16" else dtype  # of which only 0 is asked for
        return _device_array.to_device(numpy.full(shape, value, bits), dtype, self.device)

    def result(self, x, dim=None):
        return x if dim is None else x.narrow(dim)


class Numba(Lent):
    def result(self, x, dim=None):
        from numba import cuda
        return cuda.as_cuda_array(super().result(x, dim))


class Jax(Lent):
    """JAX's arrays on a GPU, by DLPack both ways."""

    def borrow(self, x):
        return super().borrow(x.block_until_ready() if hasattr(x, "block_until_ready") else x)

    def result(self, x, dim=None):
        import jax
        out = jax.dlpack.from_dlpack(x)
        return out if dim is None else out[..., :dim]


def as_int32(xp, x):
    """Ints beyond int32 as its ends: as lengths they mean what they did."""
    x = xp.asarray(x)
    if x.dtype.kind in "iu" and x.dtype.itemsize >= 4 and x.dtype.name != "int32":
        x = xp.minimum(x, 2 ** 31 - 1)
        x = xp.maximum(x, -2 ** 31) if x.dtype.kind == "i" else x
    return xp.asarray(x, dtype="int32")


def check_device(of_x, of_q):
    if of_x != of_q:
        raise BadArgument(f"an array is on {of_x} and q on {of_q}; they must be equal")


def shares(x):
    return hasattr(x, "__cuda_array_interface__") or (hasattr(x, "__dlpack__") and not isinstance(x, numpy.ndarray))


def library_of(q):
    """The library of q, whose kind the results are."""
    if isinstance(q, numpy.ndarray):
        return NumPy()
    root = type(q).__module__.partition(".")[0]
    if root == "cupy":
        return CuPy(q)
    if root in ("jax", "jaxlib"):
        if isinstance(q, sys.modules["jax"].core.Tracer):
            raise Unsupported("q is being traced by JAX; attention takes JAX arrays that are there, outside jit, grad and vmap")
        return JaxOnHost(q) if next(iter(q.devices())).platform == "cpu" else Jax(q)
    if not isinstance(q, DeviceArray) and not shares(q):
        raise BadArgument(f"q is a {type(q).__name__}; it must be an array of NumPy, CuPy or JAX, a tensor of PyTorch, or have "
                          "__dlpack__ or __cuda_array_interface__")
    if root == "numba":
        return Numba(q)
    borrowed = Lent(q)
    return OnHost() if borrowed.device == "emu" and not isinstance(q, DeviceArray) else borrowed
