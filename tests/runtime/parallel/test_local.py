"""Operators on parts against the whole operator, with the placements that need more than the operator itself."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tests.runtime.parallel.ranks import on_mesh
from wirewise.errors import PlanError
from wirewise.plans.parallel import parse_placements
from wirewise.runtime.parallel.local import LocalOperator, draws_random_numbers, local_operator
from wirewise.runtime.parallel.parts import part_of_mesh, whole_of_parts

MESH = (2, 2)
ATEN = torch.ops.aten
X = torch.randn(8, 12)
IMAGE = torch.randn(4, 8, 6, 6)
KERNEL = torch.randn(16, 8, 3, 3)
ROWS = torch.tensor([3, 1, 7, 0, 7, 5, 2, 6])
LOG = torch.randn(8, 12).log_softmax(1)
CLASSES = torch.tensor([3, 1, 11, 0, 7, -100, 2, 6])
CONVOLUTION = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

CASES = {
    "view": (ATEN.view.default, (X, [2, 4, 3, 4]), ["S0 S1/3"], ["S0 S3"]),
    "expand": (ATEN.expand.default, (X[:, :1], [8, 12]), ["S0 R"], ["S0 S1"]),
    "full": (ATEN.full.default, ([8, 12], 2.0), [], ["S0 S1"]),
    "new_zeros": (ATEN.new_zeros.default, (X, [4, 6]), ["S0 R"], ["S1 R"]),
    "arange": (ATEN.arange.default, (12,), [], ["S0 R"]),
    "split": (ATEN.split.Tensor, (X, 4, 1), ["S0 S1/3"], ["S0 S1"] * 3),
    "slice": (ATEN.slice.Tensor, (X, 1, 4, 8), ["S0 S1/3"], ["S0 S1"]),
    "slice to the end": (ATEN.slice.Tensor, (X, 1, -4, 2**63 - 1), ["R S1/3"], ["R S1"]),
    "slice backward": (ATEN.slice_backward.default, (X, [8, 24], 1, 0, 12, 1), ["S0 R"], ["S0 R"]),
    "slice backward, blocks": (
        ATEN.slice_backward.default,
        (X, [8, 36], 1, 12, 24, 1),
        ["S0 S1"],
        ["S0 S1/3"],
    ),
    "joined blocks": (ATEN.cat.default, ([X, X * 2], 1), ["S0 S1"] * 2, ["S0 S1/2"]),
    "rows by numbers": (ATEN.index.Tensor, (X, [ROWS]), ["S0 R", "R S0"], ["P S0"]),
    "rows by numbers of a dimension": (ATEN.index_select.default, (X, 0, ROWS), ["R S0", "S0 R"], ["S0 P"]),
    "gathered": (ATEN.gather.default, (X, 1, ROWS.unsqueeze(1)), ["S0 S1", "S0 R"], ["S0 P"]),
    "rows added": (
        ATEN.index_add.default,
        (X, 0, ROWS, X * 2),
        ["R S1", "S0 R", "S0 S1"],
        ["P S1"],
    ),
    "rows added to a part": (ATEN.index_add.default, (X, 0, ROWS, X * 2), ["S0 R", "R S0", "R S0"], ["S0 P"]),
    "rows put": (
        ATEN.index_put.default,
        (X, [ROWS], X * 2, True),
        ["S0 R", "R S0", "R S0"],
        ["S0 P"],
    ),
    "scattered rows": (
        ATEN.scatter_add.default,
        (X, 0, ROWS.unsqueeze(1).expand(8, 12).contiguous(), X * 2),
        ["S0 S1", "R S1", "R S1"],
        ["S0 S1"],
    ),
    "mean": (ATEN.mean.default, (X,), ["S0 S1"], ["P P"]),
    "mean of a dimension": (ATEN.mean.dim, (X, [-1], True), ["S0 S1"], ["S0 P"]),
    "mse": (ATEN.mse_loss.default, (X, X * 0.5), ["S0 S1"] * 2, ["P P"]),
    "mse, a sum": (ATEN.mse_loss.default, (X, X * 0.5, 2), ["S0 S1"] * 2, ["P P"]),
    "mse backward": (
        ATEN.mse_loss_backward.default,
        (torch.tensor(1.0), X, X * 0.5, 1),
        ["R R", "S0 S1", "S0 S1"],
        ["S0 S1"],
    ),
    "embedding": (ATEN.embedding.default, (X, ROWS), ["S0 R", "R S0"], ["P S0"]),
    "embedding, two dimensions": (ATEN.embedding.default, (X, ROWS), ["S0 S0", "R R"], ["P P"]),
    "embedding backward": (
        ATEN.embedding_dense_backward.default,
        (X, ROWS, 8, 7, False),
        ["R S0", "R S0"],
        ["S0 P"],
    ),
    "softmax": (ATEN._softmax.default, (X, -1, False), ["S0 S1"], ["S0 S1"]),
    "log softmax": (ATEN._log_softmax.default, (X, 1, False), ["S1 S1"], ["S1 S1"]),
    "softmax backward": (
        ATEN._softmax_backward_data.default,
        (X, X.softmax(1), 1, torch.float32),
        ["S0 S1"] * 2,
        ["S0 S1"],
    ),
    "log softmax backward": (
        ATEN._log_softmax_backward_data.default,
        (X, LOG, 1, torch.float32),
        ["S0 S1"] * 2,
        ["S0 S1"],
    ),
    "nll": (ATEN.nll_loss_forward.default, (LOG, CLASSES, None, 1, -100), ["S0 S1", "S0 R"], ["P P", "P R"]),
    "nll, total whole": (
        ATEN.nll_loss_forward.default,
        (LOG, CLASSES, None, 1, -100),
        ["S0 S1", "S0 R"],
        ["P P", "R R"],
    ),
    "nll, a sum": (
        ATEN.nll_loss_forward.default,
        (LOG, CLASSES, None, 2, -100),
        ["S1 S0", "R S0"],
        ["P P", "R P"],
    ),
    "nll backward": (
        ATEN.nll_loss_backward.default,
        (torch.tensor(2.0), LOG, CLASSES, None, 1, -100, torch.tensor(7.0)),
        ["R R", "S0 S1", "S0 R", "R R"],
        ["S0 S1"],
    ),
    "convolution": (
        ATEN.convolution.default,
        (IMAGE, KERNEL, torch.randn(16), *CONVOLUTION),
        ["S0 S1", "R S1", "R R"],
        ["S0 P"],
    ),
    "convolution backward": (
        ATEN.convolution_backward.default,
        (torch.randn(4, 16, 6, 6), IMAGE, KERNEL, [16], *CONVOLUTION, [True] * 3),
        ["S0 S1", "S0 R", "R S0"],
        ["S0 P", "P S0", "P S0"],
    ),
    "group norm": (
        ATEN.native_group_norm.default,
        (IMAGE, torch.randn(8), torch.randn(8), 4, 8, 36, 4, 1e-5),
        ["S0 S1", "R S0", "R S0"],
        ["S0 S1", "S0 S1", "S0 S1"],
    ),
    "upsample backward": (
        ATEN.upsample_nearest2d_backward.default,
        (IMAGE, [6, 6], [4, 8, 3, 3], 2.0, 2.0),
        ["S0 S1"],
        ["S0 S1"],
    ),
}


def traced(target, args):
    """The operator as a node, and what it gives."""
    flat = [one for one in pytree.tree_leaves(args) if isinstance(one, torch.Tensor)]

    def call(*given):
        tensors = iter(given)
        return target(
            *pytree.tree_map(lambda one: next(tensors) if isinstance(one, torch.Tensor) else one, args)
        )

    module = make_fx(call, tracing_mode="fake")(*flat)
    node = next(n for n in module.graph.nodes if n.op == "call_function" and n.target is not operator.getitem)
    return node, flat, call(*flat)


def on_parts(node, flat, inputs, outputs):
    """Outputs of the operator on all ranks."""

    def run(groups):
        placed = dict(zip(node.all_input_nodes, map(placements, inputs), strict=True))
        own = local_operator(LocalOperator(node, placed, tuple(map(placements, outputs)), groups))
        parts = {
            source: part_of_mesh(one, placed[source], MESH, groups.place)
            for source, one in zip(node.all_input_nodes, flat, strict=True)
        }
        found = own(*torch.fx.map_arg(node.args, parts.__getitem__), **node.kwargs)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    return on_mesh(MESH, run)


def placements(words):
    return parse_placements(words.split())


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_parts_are_those_of_the_whole_operator(name):
    target, args, inputs, outputs = CASES[name]
    node, flat, whole = traced(target, args)
    found = on_parts(node, flat, inputs, outputs)
    wholes = list(whole) if isinstance(whole, (tuple, list)) else [whole]
    for number, (wanted, words) in enumerate(zip(wholes, outputs, strict=True)):
        got = whole_of_parts([one[number] for one in found], placements(words), MESH)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "args", "inputs", "outputs", "said"),
    [
        (ATEN.slice.Tensor, (X, 1, 1, 7), ["R S1"], ["R S1"], "expected bounds of whole blocks"),
        (
            ATEN.convolution.default,
            (IMAGE, KERNEL, None, *CONVOLUTION),
            ["S2 R", "R R"],
            ["S2 R"],
            "expected it whole in height and width",
        ),
        (ATEN.embedding.default, (X, ROWS), ["S0/2 R", "R R"], ["P R"], "parts of several blocks"),
        (ATEN.multinomial.default, (X.exp(), 2), ["S0 R"], ["S0 R"], "draws random numbers"),
    ],
)
def test_parts_that_do_not_tell_are_refused(target, args, inputs, outputs, said):
    node, flat, _ = traced(target, args)
    with pytest.raises(PlanError, match=said):
        on_parts(node, flat, inputs, outputs)


def test_random_numbers_are_those_of_one_device():
    node, *_ = traced(ATEN.bernoulli.p, (X, 0.3))
    assert draws_random_numbers(node)
    torch.manual_seed(3)
    wanted = torch.bernoulli(X, 0.3)
    for place in itertools.product(range(2), range(2)):

        class Alone:
            mesh, place_ = MESH, place

        Alone.place = place
        where = placements("S0 S1")
        own = local_operator(LocalOperator(node, {node.args[0]: where}, (where,), Alone()))
        torch.manual_seed(3)
        got = own(part_of_mesh(X, where, MESH, place), 0.3)
        assert torch.equal(got, part_of_mesh(wanted, where, MESH, place))


def test_attention_without_dropout_draws_nothing():
    heads = torch.randn(2, 4, 6, 8)
    node, *_ = traced(ATEN._scaled_dot_product_flash_attention_for_cpu.default, (heads, heads, heads))
    assert not draws_random_numbers(node)
