"""DLPack by ctypes: arrays of any library that speaks it, as pointers, and memory of our own for such libraries."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from typing import Any, NamedTuple, Tuple

from .errors import BadArgument

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}  # DLDataTypeCode
KINDS = {code: kind for kind, code in CODES.items()}


class DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class View(NamedTuple):
    """Where an array lies. strides are in elements; `owner` keeps the memory."""
    pointer: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: str  # "float16", ...
    owner: Any = None


NAME = b"dltensor"
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = py_object, [c_void_p, ctypes.c_char_p, c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [py_object, ctypes.c_char_p]
# Of a capsule that is going away: its address, since a reference would bring it back to life.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_at = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

_lent = {}  # address of a DLManagedTensor -> what must live as long as it


@ctypes.CFUNCTYPE(None, c_void_p)
def _give_back(managed):
    _lent.pop(managed, None)


@ctypes.PYFUNCTYPE(None, c_void_p)
def _drop(capsule):
    """A capsule that nobody took over still owns its tensor."""
    if _is_valid(capsule, NAME):
        _lent.pop(_pointer_at(capsule, NAME), None)


def contiguous(shape):
    """Strides of a row-major array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def read(array: Any) -> View:
    """The View of an array that has __dlpack__; the capsule, which is its owner, gives the memory back."""
    capsule = array.__dlpack__()
    tensor = DLManagedTensor.from_address(_pointer(capsule, NAME)).tensor
    if tensor.lanes != 1 or tensor.code not in KINDS:
        raise BadArgument(f"an array has DLPack type {tensor.code} of {tensor.lanes} lanes; it must be of ints or floats")
    shape = tuple(tensor.shape[:tensor.ndim])
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else contiguous(shape)
    kind = KINDS[tensor.code]
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, kind if kind == "bool" else f"{kind}{tensor.bits}",
                capsule)


def capsule(view: View, device: Tuple[int, int]) -> Any:
    """A "dltensor" capsule of a view; device: (DLDeviceType, number)."""
    rank = len(view.shape)
    shape, strides = (c_int64 * rank)(*view.shape), (c_int64 * rank)(*view.strides)
    kind = view.dtype.rstrip("0123456789")
    managed = DLManagedTensor(DLTensor(view.pointer, *device, rank, CODES[kind], int(view.dtype[len(kind):]), 1, shape,
                                       strides, 0), None, ctypes.cast(_give_back, c_void_p))
    address = ctypes.addressof(managed)
    _lent[address] = managed, shape, strides, view.owner
    return _new(address, NAME, ctypes.cast(_drop, c_void_p))
