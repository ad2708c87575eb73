"""One query of NumPy arrays, whose heads are queries of one head where there is a Hopper GPU: here one is claimed, and the
emulator computes, against float64."""
import numpy as np
import pytest

import flashkiln
from flashkiln import _heads, _runtime, attention
from numpy_test import close, definition, normal

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def spelled(monkeypatch):
    found, prepare = [], _runtime.prepare
    monkeypatch.setattr(_heads, "is_hopper", lambda device: device is not None)
    monkeypatch.setattr(_heads, "device_info", lambda key, find=_heads.device_info: find("h200"))
    monkeypatch.setattr(_runtime, "prepare", lambda on, spelling, *a, **f: found.append(spelling) or prepare(on, spelling, *a, **f))
    return found


@pytest.mark.parametrize("heads, heads_kv, layout", [(6, 2, "bshd"), (6, 2, "bhsd"), (3, 3, "bhsd"), (16, 1, "bshd")])
def test_heads_are_queries(heads, heads_kv, layout, spelled):
    q, k, v = (normal(2, rows, n, dim, dtype=np.float16, seed=i)
               for i, (rows, n, dim) in enumerate(((1, heads, 300), (600, heads_kv, 300), (600, heads_kv, 60))))
    expect = definition(q, k, v)
    given = [x.swapaxes(1, 2) for x in (q, k, v)] if layout == "bhsd" else [q, k, v]
    o, lse = attention(*given, causal=True, return_lse=True, layout=layout)
    assert spelled == ["fwd fp16 d320 dv64"]
    close("o", o if layout == "bshd" else o.swapaxes(1, 2), expect[0])
    close("lse", lse, expect[1], 1e-3)


def test_heads_of_a_full_round(spelled):
    """At a head dim that is padded."""
    q, k, v = (normal(24, rows, heads, 60, dtype=np.float16, seed=i) for i, (rows, heads) in enumerate(((1, 8), (70, 4), (70, 4))))
    expect = definition(q, k, v)
    o, lse = attention(q, k, v, causal=True, return_lse=True)
    assert spelled == ["fwd fp16 d64"]
    close("o", o, expect[0])
    close("lse", lse, expect[1], 1e-3)


def test_a_pack_of_splits(spelled, monkeypatch):
    """Who may not compile, and has shipped these alone."""
    prepare = _runtime.prepare

    def sealed(on, spelling, *a, **f):
        if not spelling.endswith(" split"):
            raise flashkiln.errors.NoJit(spelling)
        return prepare(on, spelling, *a, **f)
    monkeypatch.setattr(_runtime, "prepare", sealed)
    q, k, v = (normal(24, rows, heads, 64, dtype=np.float16, seed=i) for i, (rows, heads) in enumerate(((1, 8), (600, 4), (600, 4))))
    close("o", attention(q, k, v), definition(q, k, v)[0])
    assert spelled == ["fwd fp16 d64 gqa split"]
    with pytest.raises(flashkiln.errors.NoJit, match="fwd fp16 d64 gqa"):
        attention(q, k, v, num_splits=1)


@pytest.mark.parametrize("batch, dim", [(2, 320), (47, 128)])
def test_of_pages(batch, dim, spelled):
    """Where all heads are queries, and where 94 of 132 SMs have a tile; lengths are unlike."""
    q, k, v = (normal(batch, rows, heads, dim, dtype=np.float16, seed=i) for i, (rows, heads) in enumerate(((1, 4), (32, 2), (32, 2))))
    table = np.random.default_rng(7).permutation(2 * batch).astype(np.int32).reshape(batch, 2)
    used = np.where(np.arange(batch) % 3 == 1, 19 - np.arange(batch) % 17, 32).astype(np.int32)
    pages = [np.full((2 * batch, 16, 2, dim), np.nan, np.float16) for _ in range(2)]
    for paged, rows in zip(pages, (k, v)):
        paged[table.ravel()] = rows.reshape(2 * batch, 16, 2, dim)
    o, lse = attention(q, *pages, page_table=table, seqused_k=used, return_lse=True)
    expect = definition(q, k, v, np.arange(32) < used[:, None, None, None])
    assert spelled == [f"fwd fp16 d{dim} seqused_k paged(16)"]
    close("o", o, expect[0])
    close("lse", lse, expect[1], 1e-3)


@pytest.mark.parametrize("options", [{"num_splits": 2}, {"window": 40}, {"softcap": 9.0}])
def test_what_has_splits(options, spelled):
    q, k = normal(1, 1, 2, 320, dtype=np.float16), normal(1, 600, 1, 320, dtype=np.float16)
    attention(q, k, k, **options)
    assert spelled[0].startswith("fwd fp16 d320 gqa") and spelled[0].endswith(" split")


def test_explain():
    """By the GPU that is asked for."""
    q, k = np.zeros((2, 1, 32, 512), np.float16), np.zeros((2, 600, 2, 512), np.float16)
    told = flashkiln.explain(q, k, k, gpu="h200", causal=True)
    assert told.spelling == "fwd fp16 d512" and told.shape == (2, 2, 2, 16, 600) and "queries of one head" in str(told)
    assert flashkiln.explain(q, k, k, gpu="a100", causal=True).spelling == "fwd fp16 d512 gqa causal split"
