"""include/flashkiln.h by ctypes, as far as the benchmarks need it. The library checks struct_size, so a struct that no
longer matches the header is refused, not misread."""
import ctypes
from ctypes import byref, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p


class Mask(ctypes.Structure):
    _fields_ = [("name", c_char * 32), ("expr", c_char * 240), ("num_values", c_int32), ("value", c_int32 * 4)]


class Problem(ctypes.Structure):
    _fields_ = ([("struct_size", c_size_t)]
                + [(n, c_int32) for n in ("op", "dtype", "head_dim", "head_dim_v", "gqa", "align", "num_masks")]
                + [("mask", Mask * 4)])


class Shape(ctypes.Structure):
    _fields_ = [(n, c_int64) for n in ("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_k")]


class PlanOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("rule", c_int32), ("shape", Shape), ("template_dir", c_char_p)]


class PlanInfo(ctypes.Structure):
    _fields_ = ([("family", c_char * 16)]
                + [(n, c_int32) for n in ("sm", "block_m", "block_n", "warps", "stages", "q_in_regs", "ctas_per_sm",
                                          "smem_bytes", "registers", "legal", "chosen")]
                + [(n, c_double) for n in ("tensor_us", "exp_us", "issue_us", "smem_us", "hbm_us", "model_us",
                                           "hbm_bytes")]
                + [("bound", c_char * 16), ("reason", c_char * 160)])


class TileCounts(ctypes.Structure):
    _fields_ = [(n, c_int64) for n in ("empty", "partial", "full")]


class ImageInfo(ctypes.Structure):
    _fields_ = ([("target", c_char * 16)]
                + [(n, c_int32) for n in ("registers", "spill_bytes", "smem_static", "smem_dynamic", "threads")]
                + [("image_bytes", c_int64), ("compile_ms", c_double), ("compiler", c_char * 96), ("key", c_char * 65)])


class KernelInfo(ctypes.Structure):
    _fields_ = [("plan", PlanInfo), ("image", ImageInfo), ("from_store", c_int32), ("lookup_ms", c_double),
                ("load_ms", c_double), ("store_path", c_char * 512), ("store_note", c_char * 160)]


class ContextOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("device", c_char_p), ("plan_for", c_char_p), ("cache_dir", c_char_p),
                ("cache_mode", c_int32), ("planning", PlanOptions)]


class Args(ctypes.Structure):
    _fields_ = ([("struct_size", c_size_t)]
                + [(n, c_int64) for n in ("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_k")]
                + [(n, c_void_p) for n in "qkvo"] + [("lse", c_void_p)]
                + [(f"{n}_stride", c_int64 * 3) for n in "qkvo"] + [("softmax_scale", c_float)])


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.fk_last_error.restype = c_char_p
        self.lib.fk_status_name.restype = c_char_p

    def __call__(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status:
            reason = self.lib.fk_last_error().decode()
            raise RuntimeError(f"{name}: {self.lib.fk_status_name(status).decode()}: {reason}")

    def problem(self, spelling):
        out = Problem(struct_size=ctypes.sizeof(Problem))
        self("fk_problem_parse", spelling.encode(), byref(out))
        return out

    def context(self, device, plan_for=None, cache_dir=None):
        options = ContextOptions(struct_size=ctypes.sizeof(ContextOptions), device=device.encode(),
                                 plan_for=plan_for and plan_for.encode(), cache_dir=cache_dir and cache_dir.encode())
        options.planning.struct_size = ctypes.sizeof(PlanOptions)
        out = c_void_p()
        self("fk_context_create", byref(options), byref(out))
        return out

    def kernel(self, context, problem):
        """(handle, description)"""
        out, info = c_void_p(), KernelInfo()
        self("fk_kernel_create", context, byref(problem), byref(out))
        self("fk_kernel_describe", out, byref(info))
        return out, info

    def tiles(self, problem, plan, shape):
        options, out = PlanOptions(struct_size=ctypes.sizeof(PlanOptions), shape=shape), TileCounts()
        self("fk_plan_tiles", byref(problem), byref(plan), byref(options), byref(out))
        return out
