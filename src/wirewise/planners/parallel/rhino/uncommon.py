"""Loops of uncommon operators: spectra, distances, weight norms, windows, linear algebra."""

from __future__ import annotations

from collections.abc import Callable

from wirewise.planners.parallel.rhino.loop_records import Dims, Label, Loops, Shapes, spread
from wirewise.trace.operator_graph import OperatorNode

__all__ = ["UNCOMMON"]


def _spectrum(node: OperatorNode, shapes: Shapes) -> Loops:
    """Fourier transforms along some dimensions; the others are each for themselves."""
    dims = tuple(range(len(node.shape)))
    return Loops([dims], [dims], closed={int(d) % len(dims) for d in node.arguments["dim"]}, linear="all")


def _log_sigmoid(node: OperatorNode, shapes: Shapes) -> Loops:
    """Elementwise, with a buffer for the backward pass, which is empty on GPUs."""
    dims = tuple(range(len(shapes[0])))
    empty = {number for number, shape in enumerate(node.parts) if tuple(shape) != tuple(shapes[0])}
    outputs: list[Dims] = [() if number in empty else dims for number in range(len(node.parts))]
    return Loops([dims], outputs, whole={(number, d) for number in empty for d in dims})


def _distances(node: OperatorNode, shapes: Shapes) -> Loops:
    """Distances of rows [..., p, m] and [..., r, m], [..., p, r], and their gradient for the first rows."""
    known = dict(zip(node.roles, shapes, strict=True))
    pairs = known.get("grad", node.shape)
    lead = len(pairs) - 2

    def rows(shape: tuple[int, ...], name: str) -> Dims:
        return (*spread(shape[:-2], pairs[:lead]), name, None)

    both: Dims = (*range(lead), "p", "r")
    dims = {"x1": rows(known["x1"], "p"), "x2": rows(known["x2"], "r"), "grad": both, "cdist": both}
    output = rows(node.shape, "p") if "grad" in known else both
    return Loops([dims[role] for role in node.roles], [output])


def _weight_norm(node: OperatorNode, shapes: Shapes) -> Loops:
    """Rows of a weight, each with its norm, along one dimension."""
    count = len(shapes[0])
    dim = int(node.arguments.get("dim", 0)) % count

    def dims(shape: tuple[int, ...]) -> Dims:
        return tuple(dim if d == dim and len(shape) == count else None for d in range(len(shape)))

    return Loops([dims(one) for one in shapes], [dims(one) for one in node.parts])


def _diagonal(node: OperatorNode, shapes: Shapes) -> Loops:
    """The diagonal of two dimensions, behind the others; and its gradient."""
    full = shapes[0] if "self" in node.roles else node.shape
    pair = {int(node.arguments.get(name, at)) % len(full) for name, at in (("dim1", 0), ("dim2", 1))}
    dims: Dims = tuple(d if d not in pair else None for d in range(len(full)))
    rest: Dims = (*(d for d in dims if d is not None), None)
    forward = node.roles == ("self",)
    known = {"self": dims, "src": rest, "grad_output": rest}
    return Loops([known[role] for role in node.roles], [rest if forward else dims], linear="all")


def _windows(node: OperatorNode, shapes: Shapes) -> Loops:
    """Windows that slide along a dimension, behind the others; and their gradient."""
    forward = "self" in node.roles
    full = shapes[0] if forward else node.shape
    dim = int(node.arguments.get("dimension", node.arguments.get("dim", 0))) % len(full)
    dims: Dims = tuple(d if d != dim else None for d in range(len(full)))
    return Loops([dims if forward else (*dims, None)], [(*dims, None) if forward else dims], linear="all")


def _beside(node: OperatorNode, shapes: Shapes) -> Loops:
    """Placements of a write along one dimension, by a slice or by indices; other dimensions are independent."""
    count = len(node.shape)
    dim = int(node.arguments.get("dim", 0)) % max(count, 1)
    dims: Dims = tuple(d if d != dim else None for d in range(count))
    # A selected slice lacks the dimension; numbers that fill have none.
    slice_dims: Dims = tuple(d for d in range(count) if d != dim)
    linear = "src" in node.roles
    return Loops(
        [dims if len(one) == count else slice_dims if linear else (None,) * len(one) for one in shapes],
        [dims],
        linear="all" if linear else "none",
    )


def _complex(node: OperatorNode, shapes: Shapes) -> Loops:
    """Complex numbers as pairs in a last dimension, or pairs as complex numbers."""
    dims: Dims = tuple(range(min(len(shapes[0]), len(node.shape))))

    def placed(shape: tuple[int, ...]) -> Dims:
        return (*dims, *(None,) * (len(shape) - len(dims)))

    return Loops([placed(shapes[0])], [placed(node.shape)], linear="all")


def _matrices(count: int) -> Callable[[OperatorNode, Shapes], Loops]:
    """Operators on the matrices of the last two dimensions; dimensions in front are each for themselves."""

    def make(node: OperatorNode, shapes: Shapes) -> Loops:
        lead = shapes[0][:-2]
        labels: tuple[Label, ...] = tuple(range(len(lead)))
        outputs = node.parts or (node.shape,)
        # A side of one matrix, or of vectors, is spread over those of the other: taken whole.
        alike = all(tuple(one[: len(lead)]) == tuple(lead) for one in (*shapes[:count], *outputs))

        def dims(shape: tuple[int, ...]) -> Dims:
            return (*labels, *(None,) * (len(shape) - len(lead))) if alike else (None,) * len(shape)

        return Loops([dims(one) for one in shapes], [dims(one) for one in outputs])

    return make


def _experts(node: OperatorNode, shapes: Shapes) -> Loops:
    """Products of tokens, sorted by their expert, with the experts' weights, and their gradients.

    Tokens [t, k] and weights [e, k, n] give [t, n]; where each expert's tokens end is the same on all ranks. A rank
    with some of the experts has zeros for the tokens of the others.
    """
    tokens: Dims = (None, "k")
    weights: Dims = ("e", "k", "n")
    results: Dims = (None, "n")
    known = {"input": tokens, "weight": weights, "grad_output": results}
    outputs = [tokens, weights] if "grad_output" in node.roles else [results]
    return Loops([known.get(role, (None,)) for role in node.roles], outputs)


def _grouped_products(node: OperatorNode, shapes: Shapes) -> Loops:
    """Products of groups by torch's own operator; which rows are a group's is the same on all ranks."""
    kinds: dict[tuple[int, int], tuple[list[Dims], Dims]] = {
        (2, 3): ([(None, "k"), (None, "k", "n")], (None, "n")),
        (2, 2): ([("m", None), (None, "n")], (None, "m", "n")),
    }
    known = kinds.get((len(shapes[0]), len(shapes[1])))
    if known is None or len(shapes) > 3 or len(known[1]) != len(node.shape):
        return Loops([(None,) * len(one) for one in shapes], [(None,) * len(node.shape)])
    return Loops([*known[0], *[(None,)] * (len(shapes) - 2)], [known[1]])


Rule = Callable[[OperatorNode, Shapes], Loops]
UNCOMMON: dict[str, Rule] = {
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _spectrum),
    "log_sigmoid_forward": _log_sigmoid,
    **dict.fromkeys(("_cdist_forward", "_cdist_backward"), _distances),
    **dict.fromkeys(("_weight_norm_interface", "_weight_norm_interface_backward"), _weight_norm),
    **dict.fromkeys(("diagonal", "diagonal_backward", "diagonal_scatter"), _diagonal),
    **dict.fromkeys(("unfold", "unfold_backward"), _windows),
    **dict.fromkeys(("slice_scatter", "select_scatter", "index_fill"), _beside),
    **dict.fromkeys(("view_as_real", "view_as_complex"), _complex),
    **dict.fromkeys(
        ("linalg_inv_ex", "linalg_cholesky_ex", "linalg_qr", "linalg_lu_factor_ex", "linalg_matrix_exp", "linalg_eigh",
         "_linalg_eigh", "_linalg_svd", "_linalg_det", "_linalg_slogdet"), _matrices(1),
    ),
    **dict.fromkeys(
        ("transformers.grouped_mm_fallback.default", "transformers.grouped_mm_fallback_backward.default"), _experts
    ),
    "_grouped_mm": _grouped_products,
    **dict.fromkeys(("_linalg_solve_ex", "linalg_lu_solve", "linalg_solve_triangular"), _matrices(3)),
}  # fmt: skip
"""Rules by operator name; with namespace and overload for operators outside ATen."""
