"""include/flashkiln.h by ctypes: structs and enumerators are read from the header itself, so that they match the library
that was built with it. The library checks struct_size besides: a struct of another version is refused, not misread."""
from __future__ import annotations

import ctypes
import functools
import os
import re
from ctypes import byref, c_char_p, c_size_t, c_void_p

from . import _nvrtc
from .errors import BY_STATUS, FlashKilnError, IoError

PACKAGE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(PACKAGE))  # the source tree, where the package is used from one

SCALARS = {"char": ctypes.c_char, "int": ctypes.c_int, "float": ctypes.c_float, "double": ctypes.c_double,
           "size_t": c_size_t, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
           "uint64_t": ctypes.c_uint64, "uint8_t": ctypes.c_uint8}


class Header:
    """Types, enumerators and numeric macros of a C header of plain declarations."""

    def __init__(self, path):
        with open(path, encoding="ascii") as f:
            text = re.sub(r"/\*.*?\*/|//[^\n]*", "", f.read().replace("\\\n", ""), flags=re.S)
        self.values, self.types = {}, dict(SCALARS)
        for name, value in re.findall(r"^#define\s+(FK_\w+)\s+([\d(][\d\s()<+*-]*)$", text, re.M):
            self.values[name] = eval(value)  # digits and operators only
        for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", text, re.S):
            self.read_enum(body)
        for body, name in re.findall(r"typedef\s+struct\s+\w+\s*\{(.*?)\}\s*(\w+)\s*;", text, re.S):
            self.types[name] = type(name, (ctypes.Structure,), {"_fields_": self.read_fields(body)})

    def read_enum(self, body):
        value = -1
        for entry in filter(None, map(str.strip, body.split(","))):
            name, _, given = map(str.strip, entry.partition("="))
            value = int(given, 0) if given else value + 1
            self.values[name] = value

    def read_fields(self, body):
        fields = []
        for declaration in filter(None, map(str.strip, body.split(";"))):
            kind, declarators = re.match(r"(?:const\s+)?(\w+)\s*(.*)", declaration, re.S).groups()
            for declarator in declarators.split(","):
                stars, name, sizes = re.match(r"\s*(\**)\s*(\w+)\s*((?:\[\w+\])*)", declarator).groups()
                ctype = self.pointer(kind) if stars else self.types[kind]
                for size in reversed(re.findall(r"\[(\w+)\]", sizes)):
                    ctype = ctype * (int(size) if size.isdigit() else self.values[size])
                fields.append((name, ctype))
        return fields

    @staticmethod
    def pointer(kind):
        return c_char_p if kind == "char" else c_void_p


class Library:
    """The C interface: lib("fk_name", arguments...) raises the exception of its status where fk_name fails."""

    def __init__(self, path=None, header=None):
        self.header = Header(header or find_header())
        self.values = self.header.values
        self.path = path or find_library()
        self.lib = ctypes.CDLL(self.path)
        self.lib.fk_last_error.restype = c_char_p
        self.lib.fk_status_name.restype = c_char_p
        self.lib.fk_kernel_workspace.restype = c_size_t
        self.lib.fk_kernel_workspace.argtypes = [c_void_p, c_void_p]
        self.lib.fk_execute.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]
        self.lib.fk_free.argtypes = [c_void_p]

    def __call__(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status:
            self.fail(name, status)

    def fail(self, name, status):
        """Raises the calling thread's last error."""
        kind = BY_STATUS.get(self.lib.fk_status_name(status).decode(), FlashKilnError)
        raise kind(f"{name}: {self.lib.fk_last_error().decode(errors='replace')}")  # C cuts long texts between bytes

    def make(self, name, **fields):
        """A struct of the header; struct_size, where it has one, and that of what it holds are set."""
        out = self.header.types[name](**fields)
        self.size(out)
        return out

    def size(self, struct):
        for name, kind in struct._fields_:
            if name == "struct_size":
                struct.struct_size = ctypes.sizeof(struct)
            elif isinstance(getattr(struct, name), ctypes.Structure):
                self.size(getattr(struct, name))

    def problem(self, spelling):
        out = self.make("fk_problem")
        self("fk_problem_parse", spelling.encode(), byref(out))
        return out

    def spell(self, problem):
        """The canonical spelling."""
        out = ctypes.create_string_buffer(self.values["FK_MAX_SPELLING"])
        self("fk_problem_spell", byref(problem), out, c_size_t(len(out)))
        return out.value.decode()

    def array_decls(self, problem):
        """fk_array_decl of each array of a problem, in the order of fk_args.array."""
        out = (self.header.types["fk_array_decl"] * self.values["FK_MAX_ARRAYS"])()
        count = c_size_t()
        self("fk_problem_arrays", byref(problem), out, byref(count))
        return list(out[:count.value])

    def blocks(self, problem):
        """Rows and columns of the blocks of a problem's first pattern; 0 and 0 without one."""
        rows, columns = ctypes.c_int32(), ctypes.c_int32()
        self("fk_problem_blocks", byref(problem), byref(rows), byref(columns))
        return rows.value, columns.value

    def arrays(self, problem):
        """Names of a problem's arrays, in the order of fk_args.array."""
        return [decl.name.decode() for decl in self.array_decls(problem)]

    def context(self, device, plan_for=None, cache_dir=None, template_dir=None, plan=None):
        options = self.make("fk_context_options", device=device.encode(), plan_for=plan_for and plan_for.encode(),
                            cache_dir=cache_dir and os.fsencode(cache_dir))
        options.planning.template_dir = template_dir and os.fsencode(template_dir)
        options.planning.plan = plan and plan.encode()
        out = c_void_p()
        self("fk_context_create", byref(options), byref(out))
        return out

    def kernel(self, context, problem):
        """(handle, description)"""
        out = c_void_p()
        self("fk_kernel_create", context, byref(problem), byref(out))
        return out, self.describe(out)

    def describe(self, kernel):
        info = self.make("fk_kernel_info")
        self("fk_kernel_describe", kernel, byref(info))
        return info

    def kernel_for(self, context, problem, shape):
        """A handle of the kernel for these sizes."""
        out = c_void_p()
        self("fk_kernel_create_for", context, byref(problem), byref(self.header.types["fk_shape"](*shape)), byref(out))
        return out

    def workspace(self, kernel, args):
        return self.lib.fk_kernel_workspace(kernel, byref(args))

    def shape(self, batch, heads, seqlen):
        return self.header.types["fk_shape"](batch, heads, heads, seqlen, seqlen)

    def tiles(self, problem, plan, shape):
        options, out = self.make("fk_plan_options", shape=shape), self.make("fk_tile_counts")
        self("fk_plan_tiles", byref(problem), byref(plan), byref(options), byref(out))
        return out

    def plans(self, problem, gpu, shape=None):
        """Candidates for a GPU, best first."""
        options, out, count = self.make("fk_plan_options"), c_void_p(), c_size_t()
        if shape is not None:
            options.shape = shape
        self("fk_plan_list", byref(problem), gpu.encode(), byref(options), byref(out), byref(count))
        kind = self.header.types["fk_plan_info"]
        plans = [kind.from_buffer_copy(entry) for entry in (kind * count.value).from_address(out.value)]
        self.lib.fk_free(out)
        return plans

    def spell_plan(self, plan):
        """A plan's line, such as "mma m128 n64 w4 s2 c2 r1"."""
        out = ctypes.create_string_buffer(self.values["FK_MAX_PLAN"])
        self("fk_plan_spell", byref(plan), out, c_size_t(len(out)))
        return out.value.decode()

    def build(self, problem, gpu, plan=None):
        """(description of the image, plan): what the compiler says of a kernel."""
        options = self.make("fk_generate_options")
        if plan is not None:
            options.plan = ctypes.addressof(plan)
        image, info, chosen = c_void_p(), self.make("fk_image_info"), self.make("fk_plan_info")
        self("fk_build", byref(problem), gpu.encode(), byref(options), byref(image), byref(info), byref(chosen))
        self.lib.fk_free(image)
        return info, chosen


def find_library():
    """$FLASHKILN_LIBRARY, else the library beside the package, else that of the source tree's build folder."""
    given = os.environ.get("FLASHKILN_LIBRARY")
    places = [given] if given else [os.path.join(folder, "libflashkiln.so")
                                    for folder in (PACKAGE, os.path.join(TREE, "build"))]
    return existing(places, "libflashkiln.so: build the source tree, or set FLASHKILN_LIBRARY")


def find_header():
    """The header beside the package, else that of the source tree."""
    return existing([os.path.join(folder, "flashkiln.h") for folder in (PACKAGE, os.path.join(TREE, "include"))],
                    "flashkiln.h: install the package anew")


def existing(places, what):
    for path in places:
        if os.path.exists(path):
            return path
    raise IoError(f"{what}; looked for {', '.join(places)}")


@functools.lru_cache(maxsize=None)
def library():
    """The library that this process uses, and with it the NVRTC of this environment."""
    _nvrtc.use()
    return Library()
