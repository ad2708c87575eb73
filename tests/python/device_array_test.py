"""attention() on arrays in a GPU's memory that are no tensors: lent by DLPack or __cuda_array_interface__, as CuPy, JAX and
Numba do; against the same tensors of PyTorch. Skipped without a GPU; CuPy, JAX and Numba where they are not there."""
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import numpy as np

from flashkiln import BadArgument, attention, attention_backward, explain


class ByDlpack:
    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **how):
        return self.x.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class ByInterface:
    def __init__(self, x):
        self.x, self.__cuda_array_interface__ = x, x.__cuda_array_interface__


def cupy_array(x):
    return pytest.importorskip("cupy").from_dlpack(x)


def jax_array(x):
    return pytest.importorskip("jax").dlpack.from_dlpack(x)


def numba_array(x):
    return pytest.importorskip("numba.cuda").as_cuda_array(x)


def draw(*shape, dtype=torch.float16):
    return torch.randn(shape, device="cuda").to(dtype)


def taken(x):
    """As a tensor, on the GPU where it lies."""
    return torch.from_dlpack(x) if hasattr(x, "__dlpack__") else torch.as_tensor(x, device="cuda")


@pytest.mark.parametrize("lent", [ByDlpack, ByInterface, cupy_array, jax_array, numba_array])
@pytest.mark.parametrize("dim", [64, 60])
def test_forward_and_backward(lent, dim):
    q, do = draw(2, 193, 4, dim), draw(2, 193, 4, dim)
    k, v = draw(2, 257, 2, dim), draw(2, 257, 2, dim)
    bias, slopes = draw(4, 193, 257, dtype=torch.float32), draw(4, dtype=torch.float32)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, bias, slopes)]
    expected, lse_ = attention(*leaves[:3], causal=True, bias=leaves[3], alibi_slopes=leaves[4], return_lse=True)
    wanted = torch.autograd.grad(expected, leaves, do)
    torch.cuda.synchronize()
    given = dict(causal=True, bias=lent(bias), alibi_slopes=slopes.tolist())
    arrays = [lent(x) for x in (q, k, v)]
    o, lse = attention(*arrays, return_lse=True, **given)
    found = attention_backward(*arrays, o, lse, lent(do), grad=["bias", "alibi_slopes"], **given)
    torch.cuda.synchronize()
    assert torch.equal(taken(o), expected) and torch.equal(taken(lse), lse_)
    for got, want in zip(found, wanted):
        assert torch.allclose(taken(got).double(), want.double(), rtol=1e-3, atol=1e-2)
    if lent not in (ByDlpack, ByInterface):
        assert type(o) is type(arrays[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes_packed_and_dropout(dtype):
    q, k, v = draw(300, 2, 64, dtype=dtype), draw(300, 2, 64, dtype=dtype), draw(300, 2, 64, dtype=dtype)
    starts = torch.tensor([0, 100, 300], device="cuda")
    given = dict(cu_seqlens_q=[0, 100, 300], cu_seqlens_k=ByDlpack(starts), dropout_p=0.25)
    arrays = [ByDlpack(x) for x in (q, k, v)]
    one, other = attention(*arrays, generator=(3, 4), **given), attention(*arrays, generator=(3, 4), **given)
    assert torch.equal(taken(one), taken(other)) and one.dtype == str(dtype)[6:]
    assert not torch.equal(taken(one), taken(attention(*arrays, generator=5, **given)))
    plain = attention(*arrays, cu_seqlens_q=[0, 100, 300], cu_seqlens_k=starts.cpu().numpy())
    assert torch.equal(taken(plain), attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts))
    assert abs(np.asarray(plain) - taken(plain).float().cpu().numpy()).max() == 0


def test_devices_and_explain():
    x = draw(1, 64, 2, 64)
    with pytest.raises(BadArgument, match="an array is on emu and q on cuda:0"):
        attention(ByDlpack(x), ByDlpack(x.cpu()), ByDlpack(x))
    told = explain(x, x, x, causal=True)
    assert told.device == "cuda:0" and told.kernel["registers"] > 0 and "registers, " in str(told)
