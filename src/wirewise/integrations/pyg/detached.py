"""Values that a script computes from all own rows of an output without gradient, such as a mean of `out.detach()`.

They are missing from the autograd graph of a loss, yet differ between ranks. They are tracked through torch's
functions: results that reduce, compare or multiply rows are marked, and so is everything computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

__all__ = ["mixes_rows", "tensors_of"]

_REDUCING = set(
    "mean sum max min amax amin aminmax median nanmedian nanmean nansum quantile nanquantile std var std_mean var_mean "
    "norm vector_norm logsumexp argmax argmin prod kthvalue mode topk all any count_nonzero bincount histc "
    "unique".split()
)
"""Functions that may take rows together; they do where the result has other rows than the tensor."""
_ALONG = set("sort argsort msort cumsum cumprod cummax cummin softmax log_softmax flip roll".split())
"""Functions that keep the shape, and take rows together along the first dimension."""
_PRODUCTS = set("matmul mm bmm dot einsum cdist __matmul__ __rmatmul__ pdist cov corrcoef".split())
"""Functions that take rows of two tensors together."""


def mixes_rows(func: Any, args: Any, kwargs: dict[str, Any], result: Any, tracked: Sequence[Tensor]) -> bool:
    """Whether a call combined rows of an output.

    Args:
        func: Function of torch that was called.
        args: Arguments of the call.
        kwargs: Named arguments of the call.
        result: Result of the call.
        tracked: Arguments that were computed from outputs.
    """
    if not tracked[0].dim():
        return False
    name = getattr(func, "__name__", "")
    if isinstance(result, Tensor) and not result.dim():
        return True
    if name in _REDUCING:
        return _loses_rows(tracked[0], result)
    if name in _ALONG:
        return _dimension(args, kwargs, tracked[0]) == 0
    return name in _PRODUCTS and (len(tracked) > 1 or name in ("pdist", "cov", "corrcoef"))


def _loses_rows(given: Tensor, result: Any) -> bool:
    first = next(tensors_of((result,)), None)
    return first is not None and tuple(first.shape[:1]) != tuple(given.shape[:1])


def _dimension(args: Any, kwargs: dict[str, Any], given: Tensor) -> int:
    places = [a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)]
    place = kwargs.get("dim", places[-1] if places else -1)
    return place % given.dim() if isinstance(place, int) else 0


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among values and in nested lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)
