from typing import Any, Literal, Mapping, Optional, Sequence, Tuple, TypeVar, Union, overload

from ._explain import (Device as Device, Explanation as Explanation, devices as devices, explain as explain, spell as spell)
from ._runtime import load_pack as load_pack
from ._sdpa import (disable_sdpa as disable_sdpa, enable_sdpa as enable_sdpa, sdpa as sdpa, sdpa_report as sdpa_report)
from ._symbols import (array as array, bit as bit, exp as exp, log as log, maximum as maximum, minimum as minimum,
                       popcount as popcount, tanh as tanh, where as where)
from ._tune import tune as tune
from .block_mask import (BlockMask as BlockMask, create_block_mask as create_block_mask)
from .errors import (BadArgument as BadArgument, BadProblem as BadProblem, CheckFailed as CheckFailed,
                     CompileFailed as CompileFailed, FlashKilnError as FlashKilnError, Internal as Internal,
                     IoError as IoError, LaunchFailed as LaunchFailed, NoCompiler as NoCompiler, NoDevice as NoDevice,
                     NoJit as NoJit, OutOfMemory as OutOfMemory, TemplateError as TemplateError, Unsupported as Unsupported)

__version__: str

# An array of any library: a tensor of PyTorch, an array of NumPy, CuPy, JAX, ...
A = TypeVar("A")
Term = Any  # an expression, a function of symbols, a block mask, or a list of these
Window = Union[int, Tuple[int, int], None]

@overload
def attention(q: A, k: A, v: A, *, causal: bool = ..., window: Window = ..., mask: Term = ..., sparsity: Term = ...,
              score: Term = ..., bias: Optional[A] = ..., softcap: Optional[float] = ..., alibi_slopes: Any = ...,
              sink: Any = ...,
              arrays: Optional[Mapping[str, Any]] = ..., dropout_p: float = ..., softmax_scale: Optional[float] = ...,
              deterministic: bool = ..., align: Literal["bottom-right", "top-left"] = ...,
              layout: Literal["bshd", "bhsd"] = ..., cu_seqlens_q: Any = ..., cu_seqlens_k: Any = ...,
              max_seqlen_q: Optional[int] = ..., max_seqlen_k: Optional[int] = ..., seqused_k: Any = ...,
              page_table: Any = ..., num_splits: Optional[int] = ..., return_lse: Literal[False] = ...,
              generator: Any = ..., q_descale: Any = ..., k_descale: Any = ..., v_descale: Any = ..., fast: bool = ...) -> A: ...
@overload
def attention(q: A, k: A, v: A, *, causal: bool = ..., window: Window = ..., mask: Term = ..., sparsity: Term = ...,
              score: Term = ..., bias: Optional[A] = ..., softcap: Optional[float] = ..., alibi_slopes: Any = ...,
              sink: Any = ...,
              arrays: Optional[Mapping[str, Any]] = ..., dropout_p: float = ..., softmax_scale: Optional[float] = ...,
              deterministic: bool = ..., align: Literal["bottom-right", "top-left"] = ...,
              layout: Literal["bshd", "bhsd"] = ..., cu_seqlens_q: Any = ..., cu_seqlens_k: Any = ...,
              max_seqlen_q: Optional[int] = ..., max_seqlen_k: Optional[int] = ..., seqused_k: Any = ...,
              page_table: Any = ..., num_splits: Optional[int] = ..., return_lse: Literal[True],
              generator: Any = ..., q_descale: Any = ..., k_descale: Any = ..., v_descale: Any = ..., fast: bool = ...) -> Tuple[A, A]: ...

def attention_backward(q: A, k: A, v: A, o: A, lse: A, dout: A, *, dlse: Optional[A] = ...,
                       grad: Union[str, Sequence[str]] = ..., deterministic: bool = ..., generator: Any = ...,
                       **options: Any) -> Tuple[A, ...]: ...

def install_as_flash_attn(force: bool = ...) -> None: ...
def uninstall_as_flash_attn() -> None: ...
