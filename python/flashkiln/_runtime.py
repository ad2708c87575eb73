"""Devices, kernels and prepared launches: what is found out once for each shape, so that a call only fills in pointers."""
from __future__ import annotations

import functools
import os
import re
import sys
import threading
import warnings
from ctypes import byref, c_void_p

from ._capi import PACKAGE, library

UNITS = {"fp16": 8, "bf16": 8, "fp32": 4, "e4m3": 16}  # elements in 16 bytes
CAPACITY = 4096  # prepared launches kept for one Terms; then all are forgotten, since lengths may differ at each call


PACKS = re.compile(r" (block_)?bits\b")  # fk_pack_blocks' problems


class Device:
    """A context of the library: "cuda:N", or "emu", the emulator, which runs kernels on the CPU. plan_for: as for that GPU."""

    def __init__(self, name, plan_for=None):
        self.name, self.lock, self.problems, self.kernels = name, threading.Lock(), {}, {}
        self.packer = None  # a kernel whose image has fk_pack_blocks, once there is one
        self.context = library().context(name, plan_for)
        for path in _packs:
            self.load_pack(path)
        if name == "emu":
            warnings.warn("flashkiln: these arrays are in the CPU's memory, so that an emulator of the GPU computes: exact, "
                          "and slow", RuntimeWarning, stacklevel=outside())

    def load_pack(self, path):
        library()("fk_context_load_pack", self.context, path)

    def kernel(self, spelling, shape=None):
        """The kernel of a problem, kept for good: (handle, fk_problem, fk_kernel_info). shape: sizes that may have a kernel
        of their own; that for all sizes is then not compiled."""
        shape = shape if shape and all(shape) else None
        found = self.kernels.get((spelling, None)) if shape is None else None
        if found:
            return found
        problem = self.problems.get(spelling) or self.problems.setdefault(spelling, library().problem(spelling))
        handle = library().kernel_for(self.context, problem, shape) if shape else library().kernel(self.context, problem)[0]
        with self.lock:
            found = self.kernels.get((spelling, handle.value))
            if found:  # it is held already
                library().lib.fk_kernel_destroy(handle)
            else:
                found = self.kernels[spelling, handle.value] = (handle.value, problem, library().describe(handle))
                if PACKS.search(spelling):
                    self.packer = handle.value
            if shape is None:
                self.kernels[spelling, None] = found
        return found


def outside():
    """How many frames up the caller of this package is: whom a warning is for."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and os.path.dirname(frame.f_code.co_filename) == PACKAGE:
        level, frame = level + 1, frame.f_back
    return level


_devices_lock = threading.Lock()
_devices = {}
_packs = []  # paths, in bytes; those of $FLASHKILN_PACK are the library's


def load_pack(path):
    """Takes kernels from a pack (docs/packs.md), on every device, before any is compiled. FLASHKILN_PACK does the same without
    a line of code. Raises IoError or CheckFailed: no pack, damaged, not trusted, or made by another build of the library."""
    path = os.path.abspath(os.fsencode(path))
    library()("fk_context_load_pack", None, path)
    with _devices_lock:
        for one in _devices.values():
            one.load_pack(path)
        _packs.append(path)


def device(name, plan_for=None):
    found = _devices.get((name, plan_for))
    if found is None:
        with _devices_lock:
            found = _devices.get((name, plan_for)) or _devices.setdefault((name, plan_for), Device(name, plan_for))
    return found


def packer(name):
    """A kernel of that device whose image has fk_pack_blocks; None: none has been made."""
    found = _devices.get((name, None))
    return found and found.packer


ALIGNMENT = 16  # bytes that copies of tiles want rows to begin at


class Launch:
    """A launch but for its pointers. args() is a fk_args to fill in; then execute, or what it does, where time counts."""
    __slots__ = ("run", "handle", "workspace", "args", "spelling")

    def __init__(self, kernel, spelling, args):
        self.handle, self.spelling = kernel[0], spelling
        self.workspace = library().workspace(c_void_p(self.handle), args)
        self.args = functools.partial(type(args).from_buffer_copy, bytes(args))
        self.run = library().lib.fk_execute

    def execute(self, args, workspace, stream):
        """Enqueues. workspace: a pointer to self.workspace bytes, or None; stream: a CUstream as an int, or None."""
        status = self.run(self.handle, byref(args), workspace, self.workspace, stream)
        if status:
            self.fail(status)

    @staticmethod
    def fail(status):
        library().fail("fk_execute", status)


def prepare(on, spelling, sizes, strides, arrays=(), grads=(), **fields):
    """The Launch of a problem on Device `on`. sizes: Shapes; strides: {tensor of fk_args: its triple}; arrays: (shape,
    strides, address modulo ALIGNMENT) of each array in order, which say how much workspace there is to be; grads: {index: strides}
    of the array gradients asked for; fields: others of fk_args."""
    kernel = on.kernel(spelling, (sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.seqlen_q, sizes.seqlen_k))
    args = library().make("fk_args", batch=sizes.batch, num_heads_q=sizes.heads_q, num_heads_kv=sizes.heads_kv,
                          seqlen_q=sizes.seqlen_q, seqlen_k=sizes.seqlen_k, total_q=sizes.total_q, total_k=sizes.total_k,
                          page_size=sizes.page_size, num_pages=sizes.num_pages, **fields)
    for name, values in strides.items():
        getattr(args, name + "_stride")[:] = values
    for i, (shape, stride, address) in enumerate(arrays):
        args.array[i].data = address
        args.array[i].size[:len(shape)] = shape
        args.array[i].stride[:len(shape)] = broadcast(shape, stride)
    for i, stride in dict(grads).items():
        args.array_grad[i].stride[:len(stride)] = stride
    return Launch(kernel, spelling, args)


def broadcast(shape, strides):
    """Strides with 0 along axes of 1, so that one element serves them all, and its gradient sums over them."""
    return [0 if size == 1 else stride for size, stride in zip(shape, strides)]


def remember(calls, key, call):
    if len(calls) >= CAPACITY:
        calls.clear()
    calls[key] = call
    return call
