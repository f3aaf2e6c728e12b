"""Loops of operators over tensor dimensions, from which their sharding strategies follow.

Each dimension of an operator's tensors belongs to a loop, and a loop can be split over ranks. Inputs without the loop
are then replicated; outputs without it are sums over it, so ranks have partial sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from wirewise.planners.parallel.rhino.loop_records import (
    Dims,
    Label,
    Loops,
    Shapes,
    operator_name,
    spread,
)
from wirewise.planners.parallel.rhino.uncommon import UNCOMMON
from wirewise.trace.operator_graph import OperatorNode

__all__ = [
    "FACTORIES",
    "LOSSES",
    "POINTWISE",
    "VIEWS",
    "linear_in",
    "loops_of",
]

FACTORIES = frozenset(
    """zeros full ones empty scalar_tensor new_zeros new_ones new_full new_empty zeros_like ones_like full_like
    empty_like""".split()
)
_ZEROS = frozenset({"zeros", "new_zeros", "zeros_like"})

_LINEAR_ALL = frozenset(
    """add sub neg clone alias detach _to_copy view_of lift_fresh_copy contiguous positive real imag _conj conj_physical
    _conj_physical""".split()
)
_LINEAR_ONE = frozenset("mul div".split())
POINTWISE = (
    _LINEAR_ALL
    | _LINEAR_ONE
    | frozenset(
        """abs exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tanh sigmoid relu relu_ gelu silu mish elu hardtanh
    hardswish hardsigmoid leaky_relu softplus erf erfc sign floor ceil round reciprocal pow
    square bitwise_not logical_not isnan isinf isfinite eq ne lt le gt ge maximum minimum
    where masked_fill clamp clamp_min clamp_max logical_and logical_or sgn trunc frac xlogy atan atan2 tan asin acos
    sinh cosh asinh acosh atanh logaddexp nan_to_num
    logical_xor bitwise_and bitwise_or bitwise_xor remainder fmod floor_divide addcmul addcdiv lerp rsub
    threshold_backward gelu_backward silu_backward tanh_backward sigmoid_backward elu_backward hardtanh_backward
    leaky_relu_backward softplus_backward hardswish_backward hardsigmoid_backward mish_backward celu threshold sinc
    hypot mse_loss_pointwise native_dropout native_dropout_backward
    bernoulli copy fill true_divide angle
    _prelu_kernel _prelu_kernel_backward log_sigmoid_backward""".split()
    )
)

LOSSES = frozenset(
    """mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss
    binary_cross_entropy_with_logits""".split()
)
"""Losses that are a sum or a mean over elements; `reduction` says which, a mean by default."""


def _pointwise(node: OperatorNode, shapes: Shapes) -> Loops:
    name = operator_name(node)
    outputs = [spread(shape, node.shape) for shape in node.parts or (node.shape,)]
    linear: Literal["none", "one", "all"] = (
        "all"
        if name in _LINEAR_ALL
        else "one"
        if name in _LINEAR_ONE and node.roles[:1] != ("other",)
        else "none"
    )
    if name in ("add", "sub") and len(shapes) == 1 and _is_number(node.arguments.get("other")):
        linear = "none"
    return Loops([spread(shape, node.shape) for shape in shapes], outputs, linear=linear)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mm(node: OperatorNode, shapes: Shapes) -> Loops:
    kinds: dict[str, tuple[list[Dims], Dims]] = {
        "mm": ([("m", "k"), ("k", "n")], ("m", "n")),
        "bmm": ([("b", "m", "k"), ("b", "k", "n")], ("b", "m", "n")),
        "mv": ([("m", "k"), ("k",)], ("m",)),
        "dot": ([("k",), ("k",)], ()),
    }
    inputs, output = kinds[operator_name(node)]
    return Loops(inputs, [output], linear="one")


def _addmm(node: OperatorNode, shapes: Shapes) -> Loops:
    inputs: list[Dims] = [("m", "k"), ("k", "n")]
    bias = spread(shapes[0], node.shape)
    return Loops(
        [tuple({0: "m", 1: "n"}.get(int(d or 0)) if d is not None else None for d in bias), *inputs],
        [("m", "n")],
        closed={"k"},
    )


def _reduce(node: OperatorNode, shapes: Shapes) -> Loops:
    shape = shapes[0]
    dims = node.arguments.get("dim")
    dims = [dims] if isinstance(dims, int) else dims if dims is not None else []
    gone = {d % max(len(shape), 1) for d in dims} if dims else set(range(len(shape)))
    kept = [d for d in range(len(shape)) if d not in gone or node.arguments.get("keepdim")]
    output = tuple(None if d in gone else d for d in kept)
    adds = operator_name(node) in ("sum", "mean")
    return Loops(
        [tuple(range(len(shape)))],
        [output] * max(len(node.parts), 1),
        closed=set() if adds else set(gone),
        linear="all" if adds else "none",
    )


def _softmax(node: OperatorNode, shapes: Shapes) -> Loops:
    dims = tuple(range(len(node.shape)))
    dim = int(node.arguments["dim"]) % len(dims)
    rows = node.output_bytes / max(node.shape[dim], 1)
    forward = not operator_name(node).endswith("backward_data")
    return Loops([dims] * len(shapes), [dims], inner={dim: (("all_reduce", rows),) * (2 if forward else 1)})


def _permute(node: OperatorNode, shapes: Shapes) -> Loops:
    count = len(shapes[0])
    order = list(range(count))
    if "dims" in node.arguments:
        order = [int(d) % count for d in node.arguments["dims"]]
    elif count > 1:
        a, b = (int(node.arguments.get(name, at)) % count for name, at in (("dim0", 0), ("dim1", 1)))
        order[a], order[b] = order[b], order[a]
    return Loops([tuple(range(count))], [tuple(order)], linear="all")


def _expand(node: OperatorNode, shapes: Shapes) -> Loops:
    return Loops([spread(shapes[0], node.shape)], [tuple(range(len(node.shape)))], linear="all")


def _dim(node: OperatorNode, count: int) -> int:
    return int(node.arguments.get("dim", 0)) % max(count, 1)


def _slice(node: OperatorNode, shapes: Shapes) -> Loops:
    """One or all parts of a dimension; equal parts can all be cut, the whole by a strided cut then."""
    shape, dim = shapes[0], _dim(node, len(shapes[0]))
    outputs = node.parts or (node.shape,)
    dims = tuple(range(len(shape)))
    lengths = {one[dim] for one in outputs}
    step = int(node.arguments.get("step") or 1)
    start = int(node.arguments.get("start") or 0) % max(shape[dim], 1)
    length = next(iter(lengths))
    loops = Loops([dims], [dims] * len(outputs), closed={dim}, linear="all")
    if len(lengths) == 1 and step == 1 and length and shape[dim] % length == 0 and start % length == 0:
        loops.parts = {dim: shape[dim] // length}
        if shape[dim] == length:
            loops.closed, loops.parts = set(), {}
    return loops


def _slice_backward(node: OperatorNode, shapes: Shapes) -> Loops:
    """Zeros around a part, [as the slice's input]; the reverse of a slice."""
    dim = _dim(node, len(node.shape))
    dims = tuple(range(len(node.shape)))
    length = shapes[0][dim] if len(shapes[0]) == len(dims) else 0
    loops = Loops([dims], [dims], closed={dim}, linear="all")
    if (
        length
        and int(node.arguments.get("step") or 1) == 1
        and node.shape[dim] % length == 0
        and (int(node.arguments.get("start") or 0) % node.shape[dim] % length == 0)
    ):
        loops.parts = {dim: node.shape[dim] // length}
    return loops


def _select(node: OperatorNode, shapes: Shapes) -> Loops:
    dim = _dim(node, len(shapes[0]))
    dims = tuple(range(len(shapes[0])))
    rest = tuple(d for d in dims if d != dim)
    outputs = [rest] * max(len(node.parts), 1)
    return Loops([dims], list(outputs), closed={dim}, linear="all")


def _select_backward(node: OperatorNode, shapes: Shapes) -> Loops:
    dim, dims = _dim(node, len(node.shape)), tuple(range(len(node.shape)))
    return Loops([tuple(d for d in dims if d != dim)], [dims], closed={dim}, linear="all")


def _cat(node: OperatorNode, shapes: Shapes) -> Loops:
    dims, dim = tuple(range(len(node.shape))), _dim(node, len(node.shape))
    loops = Loops(
        [dims if len(one) == len(dims) else () for one in shapes], [dims], closed={dim}, linear="all"
    )
    if len({one[dim] for one in shapes if len(one) == len(dims)}) == 1:
        loops.parts = {dim: len(shapes)}
    return loops


def _stack(node: OperatorNode, shapes: Shapes) -> Loops:
    dims, dim = tuple(range(len(node.shape))), _dim(node, len(node.shape))
    return Loops([tuple(d for d in dims if d != dim)] * len(shapes), [dims], closed={dim}, linear="all")


def _embedding(node: OperatorNode, shapes: Shapes) -> Loops:
    rows = tuple(range(len(shapes[1])))
    return Loops([("v", "h"), rows], [(*rows, "h")])


def _embedding_backward(node: OperatorNode, shapes: Shapes) -> Loops:
    rows = tuple(range(len(shapes[1])))
    loops = Loops([(*rows, "h"), rows], [("v", "h")])
    # Rows that counts scale or that padding leaves out need the whole batch.
    if node.arguments.get("scale_grad_by_freq"):
        loops.closed = set(rows)
    return loops


def _nll(node: OperatorNode, shapes: Shapes) -> Loops:
    """The sum of targets' losses and of their weights; a mean needs the sum of the weights inside."""
    dims = _of_classes(shapes[0])
    has_weight = "weight" in node.roles
    inputs = [dims, _of_targets(dims), *([("c",)] if has_weight else [])]
    each = node.arguments.get("reduction", 1) == 0
    inner: dict[Label, tuple[tuple[str, float], ...]] = {} if each else {"n": (("all_reduce", 8.0),)}
    whole: set[tuple[int, Label]] = {(1, "n"), (1, "c")}
    loops = Loops(inputs, [_of_targets(dims) if each else (), ()], whole=whole, inner=inner)
    if has_weight or each or len(dims) != 2:
        loops.closed = {"c"}
    return loops


def _nll_backward(node: OperatorNode, shapes: Shapes) -> Loops:
    dims = _of_classes(node.shape)
    targets = _of_targets(dims)
    known: dict[str, Dims] = {"self": dims, "target": targets, "weight": ("c",)}
    if node.arguments.get("reduction", 1) == 0:
        known["grad_output"] = targets
    closed: set[Label] = {"c"} if len(dims) != 2 or "grad_output" in known else set()
    return Loops([known.get(role, ()) for role in node.roles], [dims], closed=closed)


def _of_classes(shape: tuple[int, ...]) -> Dims:
    """Loops of scores, [classes], [rows, classes] or [rows, classes, ...]."""
    return ("c",) if len(shape) == 1 else ("n", "c", *(None,) * (len(shape) - 2))


def _of_targets(scores: Dims) -> Dims:
    return tuple(one for one in scores if one != "c")


def _gather(node: OperatorNode, shapes: Shapes) -> Loops:
    dim = _dim(node, len(shapes[0]))
    own: list[Label | None] = [
        d if d != dim and a == b else None for d, (a, b) in enumerate(zip(shapes[0], node.shape, strict=True))
    ]
    index = list(own)
    own[dim], index[dim] = "v", dim
    return Loops([tuple(own), tuple(index)], [tuple(index)])


def _index_select(node: OperatorNode, shapes: Shapes) -> Loops:
    dim = _dim(node, len(shapes[0]))
    own: list[Label | None] = list(range(len(shapes[0])))
    output = list(own)
    own[dim], output[dim] = "v", "e"
    return Loops([tuple(own), ("e",)], [tuple(output)])


def _index(node: OperatorNode, shapes: Shapes) -> Loops:
    """Rows by one tensor of numbers in front, [rows, ...] -> [numbers, ...], or places behind whole dimensions."""
    places = node.arguments.get("indices")
    if behind := _leading_whole(places):
        kept = tuple(range(behind))
        return Loops(
            [(*kept, *(None,) * (len(shapes[0]) - behind)), *[()] * (len(shapes) - 1)],
            [(*kept, *(None,) * (len(node.shape) - behind))],
            linear="none",
        )
    if len(shapes) != 2 or (isinstance(places, list) and places[:1] == [None]):
        return _whole(node, shapes)
    numbers: Dims = tuple(f"e{d}" for d in range(len(shapes[1])))
    rest = tuple(range(1, len(shapes[0])))
    return Loops([("v", *rest), numbers], [(*numbers, *rest)])


def _leading_whole(places: object) -> int:
    """Number of dimensions in front of those whose elements numbers pick, where these follow each other."""
    if not isinstance(places, list) or places[:1] != [None]:
        return 0
    count = next((d for d, one in enumerate(places) if one is not None), 0)
    return 0 if None in places[count:] else count


def _scatter_rows(node: OperatorNode, shapes: Shapes) -> Loops:
    """Rows that are added to others, as `index_add`, `index_put` with accumulation and `scatter_add` do."""
    by_role = dict(zip(node.roles, range(len(shapes)), strict=False))
    dim = _dim(node, len(node.shape))
    values = by_role.get("values", by_role.get("source", by_role.get("src", len(shapes) - 1)))
    index = next((i for role, i in by_role.items() if role.startswith("ind")), 1)
    adds = (
        operator_name(node) != "index_put" and operator_name(node) != "_unsafe_index_put"
    ) or node.arguments.get("accumulate")
    places = node.arguments.get("indices")
    if adds and (behind := _leading_whole(places)):
        full = (*range(behind), *(None,) * (len(node.shape) - behind))
        known = {"self": full, "values": (*range(behind), *(None,) * (len(shapes[values]) - behind))}
        return Loops([known.get(role, ()) for role in node.roles], [full])
    if operator_name(node) in ("scatter_add", "index_add") and dim != 0:
        return _beside_dim(node, shapes, dim, by_role)
    if len(shapes) != 3 or dim != 0 or not adds or (isinstance(places, list) and places[:1] == [None]):
        return _whole(node, shapes)
    rest = tuple(range(1, len(node.shape)))
    numbers: Dims = tuple(f"e{d}" for d in range(max(len(shapes[values]) - len(rest), 0)))
    loops = Loops([()] * 3, [("v", *rest)])
    loops.inputs[by_role.get("self", 0)] = ("v", *rest)
    loops.inputs[values] = (*numbers, *rest)
    same = len(shapes[index]) == len(node.shape) and operator_name(node) == "scatter_add"
    loops.inputs[index] = (*numbers, *rest) if same else numbers
    return loops


def _beside_dim(node: OperatorNode, shapes: Shapes, dim: int, by_role: dict[str, int]) -> Loops:
    """Sums along a dimension that stays whole; each of the others is for itself where all have it alike."""
    full = [one for role, one in zip(node.roles, shapes, strict=True) if role != "index" or len(one) > 1]
    dims = tuple(
        d if d != dim and all(len(one) == len(node.shape) and one[d] == size for one in full) else None
        for d, size in enumerate(node.shape)
    )
    return Loops([dims if len(one) == len(dims) and one in full else () for one in shapes], [dims])


def _repeat(node: OperatorNode, shapes: Shapes) -> Loops:
    """Copies behind each other: dimensions that are not repeated are as they were."""
    offset = len(node.shape) - len(shapes[0])
    own = tuple(d + offset if size == node.shape[d + offset] else None for d, size in enumerate(shapes[0]))
    return Loops([own], [tuple(d if d in own else None for d in range(len(node.shape)))], linear="all")


def _baddbmm(node: OperatorNode, shapes: Shapes) -> Loops:
    names: list[Label] = ["b", "m", "n"]
    own = tuple(
        names[d] if d is not None else None for d in map(_place_or_none, spread(shapes[0], node.shape))
    )
    return Loops([own, ("b", "m", "k"), ("b", "k", "n")], [("b", "m", "n")], closed={"k"})


def _place_or_none(label: Label | None) -> int | None:
    return None if label is None else int(label)


def _weight(node: OperatorNode, space: tuple[None, ...]) -> Dims:
    return ("i", "o", *space) if node.arguments.get("transposed") else ("o", "i", *space)


def _convolution(node: OperatorNode, shapes: Shapes) -> Loops:
    space = (None,) * (len(node.shape) - 2)
    grouped = int(node.arguments.get("groups", 1)) > 1
    inputs: list[Dims] = [("n", "i", *space), _weight(node, space), ("o",)]
    loops = Loops(inputs[: len(shapes)], [("n", "o", *space)])
    loops.closed = {"i", "o"} if grouped else {"i"} if len(shapes) > 2 else set()
    return loops


def _convolution_backward(node: OperatorNode, shapes: Shapes) -> Loops:
    space = (None,) * (len(shapes[1]) - 2)
    outputs: list[Dims] = [("n", "i", *space), _weight(node, space), ("o",)]
    outputs = outputs[: max(len(node.parts), 1)]
    loops = Loops([("n", "o", *space), ("n", "i", *space), _weight(node, space)], outputs, whole={(2, "i")})
    loops.closed = {"i", "o"} if int(node.arguments.get("groups", 1)) > 1 else set()
    return loops


def _leading(count: int) -> Callable[[OperatorNode, Shapes], Loops]:
    """Operators that treat the first dimensions alike, for tensors of the most dimensions."""

    def make(node: OperatorNode, shapes: Shapes) -> Loops:
        outputs = node.parts or (node.shape,)
        most = max(len(one) for one in (*shapes, *outputs))

        def dims(shape: tuple[int, ...]) -> Dims:
            return (
                (*range(min(count, len(shape))), *(None,) * (len(shape) - count))
                if len(shape) == most
                else ()
            )

        return Loops([dims(one) for one in shapes], [dims(one) for one in outputs])

    return make


def _of_channels(node: OperatorNode, shapes: Shapes) -> Loops:
    """Channels and places of images that change into each other; what comes before is each for itself."""
    dims = (*range(len(node.shape) - 3), None, None, None)
    return Loops([dims], [dims], linear="all")


def _rows(node: OperatorNode, shapes: Shapes) -> Loops:
    """Rows of all tensors, each for itself."""

    def dims(shape: tuple[int, ...]) -> Dims:
        return ("n", *(None,) * (len(shape) - 1))

    return Loops([dims(one) for one in shapes], [dims(one) for one in node.parts or (node.shape,)])


def _attention(node: OperatorNode, shapes: Shapes) -> Loops:
    """Attention [batch, heads, ...]: texts and heads are each for themselves; a mask may be the same for several."""
    batch, heads = shapes[0][:2]

    def dims(shape: tuple[int, ...], role: str = "") -> Dims:
        if role == "attn_mask":
            mask = ((0,) * 4 + shape)[-4:]
            found = ("b" if mask[0] == batch else None, "h" if mask[1] == heads else None, None, None)
            return found[4 - len(shape) :]
        return ("b", "h", *(None,) * (len(shape) - 2)) if shape[:2] == (batch, heads) else ()

    inputs = [dims(shape, role) for shape, role in zip(shapes, node.roles, strict=True)]
    made = [dims(one) for one in node.parts or (node.shape,)]
    whole: set[tuple[int, Label]] = {
        (n, label) for n, one in enumerate(made) if not one for label in ("b", "h")
    }
    return Loops(inputs, made, whole=whole)


def _scatter(node: OperatorNode, shapes: Shapes) -> Loops:
    """Values that are written along a dimension, which stays whole."""
    dim = _dim(node, len(node.shape))
    dims = tuple(
        d if d != dim and all(len(one) == len(node.shape) and one[d] == size for one in shapes) else None
        for d, size in enumerate(node.shape)
    )
    return Loops([dims] * len(shapes), [dims])


def _layer_norm(node: OperatorNode, shapes: Shapes) -> Loops:
    rows = len(shapes[0]) - len(node.arguments["normalized_shape"])
    dims = tuple(range(rows))
    inside = (None,) * (len(shapes[0]) - rows)
    full: Dims = (*dims, *inside)
    small: dict[str, Dims] = {"input": full, "grad_out": full, "mean": full, "rstd": full}
    inputs = [small.get(role, ()) for role in node.roles]
    if operator_name(node).endswith("backward"):
        return Loops(inputs, [full, (), ()][: max(len(node.parts), 1)])
    return Loops(inputs, [full] * max(len(node.parts), 1))


def _group_norm(node: OperatorNode, shapes: Shapes) -> Loops:
    known = {"input": len(shapes[0]), "grad_out": len(shapes[0]), "mean": 2, "rstd": 2}
    inputs: list[Dims] = [("n", *(None,) * (known[role] - 1)) if role in known else () for role in node.roles]
    outputs: list[Dims] = [("n", *(None,) * (len(one) - 1)) if len(one) > 1 else () for one in node.parts]
    return Loops(inputs, outputs)


def _batch_norm(node: OperatorNode, shapes: Shapes) -> Loops:
    """Channels alone: parts of a batch have other means than the whole, unless running ones are taken."""
    evaluated = operator_name(node).endswith("no_training") or node.arguments.get("train") is False
    rows = "n" if evaluated else None

    def dims(shape: tuple[int, ...]) -> Dims:
        return (rows, "c", *(None,) * (len(shape) - 2)) if len(shape) > 1 else ("c",) * len(shape)

    parts = node.parts or (node.shape,)
    if evaluated:
        # Means of the batch are none then: empty tensors.
        empty = {number for number, shape in enumerate(parts) if shape[:1] == (0,)}
        return Loops(
            [() if shape[:1] == (0,) else dims(shape) for shape in shapes],
            [() if number in empty else dims(shape) for number, shape in enumerate(parts)],
            whole={(number, label) for number in empty for label in ("n", "c")},
        )
    if any(one[:1] == (0,) for one in parts):
        return _whole(node, shapes)
    return Loops([dims(one) for one in shapes], [dims(one) for one in parts])


def _closed_dim(node: OperatorNode, shapes: Shapes) -> Loops:
    dims = tuple(range(len(shapes[0])))
    return Loops([dims] * len(shapes), [dims] * max(len(node.parts), 1), closed={_dim(node, len(dims))})


def _closed_last(count: int) -> Callable[[OperatorNode, Shapes], Loops]:
    def make(node: OperatorNode, shapes: Shapes) -> Loops:
        dims = tuple(range(len(shapes[0])))
        closed: set[Label] = {*dims[-count:]}
        return Loops([dims], [dims], closed=closed, linear="all")

    return make


def _moved_dims(node: OperatorNode, shapes: Shapes) -> Loops:
    """Flips, rolls and paddings: what changes along a dimension closes it."""
    dims = tuple(range(len(node.shape)))
    closed: set[Label] = {d for d in dims if shapes[0][d] != node.shape[d]}
    closed |= {int(d) % max(len(dims), 1) for d in node.arguments.get("dims") or ()}
    zero = float(node.arguments.get("value") or 0.0) == 0.0
    return Loops([dims], [dims], closed=closed, linear="all" if zero else "none")


def _factory(node: OperatorNode, shapes: Shapes) -> Loops:
    zeros = operator_name(node) in _ZEROS or node.arguments.get("fill_value") == 0
    dims = tuple(range(len(node.shape)))
    inputs = [spread(one, node.shape) if len(one) == len(dims) else () for one in shapes]
    loops = Loops(list(inputs), [dims])
    loops.linear = "all" if zeros else "none"
    return loops


def _loss(node: OperatorNode, shapes: Shapes) -> Loops:
    """Sum or mean of what each element adds: partial sums of it, as a mean is divided by all elements."""
    dims = tuple(range(len(shapes[0])))
    each = node.arguments.get("reduction", 1) == 0
    return Loops([spread(one, shapes[0]) for one in shapes], [dims if each else ()])


def _loss_backward(node: OperatorNode, shapes: Shapes) -> Loops:
    return Loops([spread(one, node.shape) for one in shapes], [tuple(range(len(node.shape)))])


def _whole(node: OperatorNode, shapes: Shapes) -> Loops:
    return Loops([()] * len(shapes), [()] * max(len(node.parts), 1), closed={"all"})


Rule = Callable[[OperatorNode, Shapes], Loops]
_RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(FACTORIES, _factory),
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), _mm),
    "addmm": _addmm,
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var", "var_mean", "prod", "any", "all",
         "logsumexp", "linalg_vector_norm", "norm", "std", "median"), _reduce,
    ),
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), _softmax
    ),
    **dict.fromkeys(("permute", "transpose", "t"), _permute),
    "expand": _expand,
    **dict.fromkeys(
        ("slice", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "narrow"), _slice
    ),
    **dict.fromkeys(("slice_backward",), _slice_backward),
    **dict.fromkeys(("select", "unbind"), _select),
    "select_backward": _select_backward,
    "cat": _cat,
    "stack": _stack,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _nll),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_backward),
    **dict.fromkeys(LOSSES, _loss),
    **dict.fromkeys([f"{name}_backward" for name in LOSSES], _loss_backward),
    "gather": _gather,
    **dict.fromkeys(("scatter", "arange"), _scatter),
    "index_select": _index_select,
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    **dict.fromkeys(("index_add", "index_put", "_unsafe_index_put", "scatter_add"), _scatter_rows),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        ("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
         "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "max_pool3d_with_indices",
         "max_pool3d_with_indices_backward", "avg_pool3d", "avg_pool3d_backward", "_adaptive_avg_pool3d",
         "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d", "adaptive_max_pool2d_backward", "replication_pad2d",
         "replication_pad2d_backward", "reflection_pad2d", "reflection_pad2d_backward", "upsample_nearest2d",
         "upsample_nearest2d_backward", "upsample_bilinear2d", "upsample_bilinear2d_backward", "upsample_bicubic2d",
         "upsample_bicubic2d_backward"), _leading(2),
    ),
    **dict.fromkeys(
        ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
         "_scaled_dot_product_attention_math"), _attention,
    ),
    **dict.fromkeys(("native_layer_norm", "native_layer_norm_backward"), _layer_norm),
    **dict.fromkeys(("native_group_norm", "native_group_norm_backward"), _group_norm),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
         "_native_batch_norm_legit_no_training", "native_batch_norm_backward"), _batch_norm,
    ),
    **dict.fromkeys(("cumsum", "cumprod", "sort", "topk", "logcumsumexp", "glu", "glu_backward"), _closed_dim),
    **dict.fromkeys(("im2col", "col2im", "grid_sampler_2d", "grid_sampler_2d_backward"), _rows),
    "repeat": _repeat,
    "baddbmm": _baddbmm,
    **dict.fromkeys(("tril", "triu"), _closed_last(2)),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _of_channels),
    **dict.fromkeys(("constant_pad_nd", "flip", "roll"), _moved_dims),
    "_safe_softmax": _closed_dim,
    **UNCOMMON,
}  # fmt: skip

_GRADIENTS = ("grad_output", "grad_out", "grad", "gradient", "grad_in", "grad_w")
VIEWS = frozenset("view reshape _unsafe_view unsqueeze squeeze flatten unflatten _reshape_copy".split())


def loops_of(node: OperatorNode, shapes: Shapes) -> Loops | None:
    """Loops of an operator. None if it has no rule.

    Args:
        node: Operator, except views.
        shapes: Shapes of its inputs.
    """
    rule = _RULES.get(operator_name(node))
    if rule is None:
        return None
    loops = rule(node, shapes)
    for number, (dims, shape) in enumerate(zip(loops.outputs, node.parts or (node.shape,), strict=True)):
        if len(dims) != len(shape):
            # An output that nobody asked for.
            loops.whole |= {(number, label) for label in dims if label is not None}
            loops.outputs[number] = (None,) * len(shape)
    return loops


def linear_in(node: OperatorNode) -> tuple[str, ...]:
    """Roles of the inputs in which all outputs are jointly linear, with the other inputs fixed."""
    if node.roles[:1] and node.roles[0] in _GRADIENTS:
        return node.roles[:1]
    zero = float(node.arguments.get("value") or 0.0) == 0.0
    adds = bool(node.arguments.get("accumulate", True))
    known = {
        "where": ("self", "other"), "masked_fill": ("self",) if zero else (), "gather": ("self",), "index": ("self",),
        "index_select": ("self",), "scatter_add": ("self", "src"), "index_add": ("self", "source"),
        "index_put": ("self", "values") if adds else (), "_unsafe_index_put": ("self", "values") if adds else (),
        "cumsum": ("self",), "copy": ("src",),
    }  # fmt: skip
    return known.get(operator_name(node), ())
