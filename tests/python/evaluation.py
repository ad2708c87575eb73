"""Expressions evaluated by the library itself: its parser and float64 reference, on pairs of few queries and keys."""
import ctypes

import numpy as np

from flashkiln._capi import library

DIM = 32  # of heads; keys are at most as many


def weights(word, text, arrays, shape, scores=None):
    """Attention weights [batch, heads, queries, keys] of a problem with keep="text" or score="text". `scores`: s before
    the term, of the same shape (0 if None)."""
    batch, heads, queries, keys = shape
    assert keys <= DIM
    data = {name: np.ascontiguousarray(x, np.float32 if np.asarray(x).dtype.kind == "f" else np.int32)
            for name, x in arrays.items()}
    declared = [f"array={name}:{'float' if x.dtype.kind == 'f' else 'int'}{'[]' * x.ndim}" for name, x in data.items()]
    lib = library()
    problem = lib.problem(f'fwd fp32 d{DIM} {" ".join(declared)} {word}="{text}"')
    args = lib.make("fk_args", batch=batch, num_heads_q=heads, num_heads_kv=heads, seqlen_q=queries, seqlen_k=keys)
    args.softmax_scale = 1.0
    # q holds the scores, k and v are unit vectors: s is what q holds, and o is the weights.
    q = np.zeros((batch, heads, queries, DIM), np.float32)
    q[..., :keys] = 0 if scores is None else scores
    k = np.broadcast_to(np.eye(keys, DIM, dtype=np.float32), (batch, heads, keys, DIM)).copy()
    layout = lib.values["FK_BHSD"]
    lib("fk_args_layout", ctypes.byref(problem), layout, ctypes.byref(args))
    args.q, args.k, args.v = q.ctypes.data, k.ctypes.data, k.ctypes.data
    for i, name in enumerate(lib.arrays(problem)):
        x = data[name]
        args.array[i].data = x.ctypes.data
        for axis in range(x.ndim):
            args.array[i].size[axis], args.array[i].stride[axis] = x.shape[axis], x.strides[axis] // 4
    o = np.zeros((batch, heads, queries, DIM))
    lib("fk_reference", ctypes.byref(problem), ctypes.byref(args), lib.values["FK_REFERENCE_F64"],
        o.ctypes.data_as(ctypes.c_void_p), None)
    return o[..., :keys]


def shown(text, arrays=None, shape=(1, 1, 16, 16)):
    """Which pairs a mask shows: bools [batch, heads, queries, keys]."""
    return weights("keep", text, arrays or {}, shape) > 0
