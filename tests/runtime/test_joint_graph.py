"""Captured training steps: loss and gradients as in eager mode, names of modules, blocks that repeat, refusals."""

from __future__ import annotations

import copy
from collections import UserDict
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx import traceback
from torch.nn import functional

from wirewise.errors import InputError
from wirewise.runtime.joint_graph import capture_step, model_loss
from wirewise.trace import OperatorGraph
from wirewise_papers.parallel_models import MODELS, gpt

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Gate(nn.Module):
    """Chooses by a value, which no tracer can follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        if x.sum() > 0:
            return self.layer(x)
        return x * 2


class Around(nn.Module):
    """Layers around another module; returns a loss."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 8), inner, nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.inner(torch.relu(self.first(x)))).mean()


class Returns(nn.Module):
    """Applies a function to what a layer makes."""

    def __init__(self, function, **more):
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), function
        for name, one in more.items():
            setattr(self, name, one)

    def forward(self, x):
        return self.function(self.layer(x))


def captured_as_eager(model, inputs, loss=model_loss):
    """The captured step; what it computes is compared with what the model does."""
    before = copy.deepcopy(model.state_dict())
    found = capture_step(model, inputs, loss)
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    results = iter(found.module(*found.inputs(model, inputs)))
    expected = loss(model, inputs)
    expected.backward()
    torch.testing.assert_close(next(results), expected.detach())
    named = dict(model.named_parameters())
    for name in found.graph.gradients:
        torch.testing.assert_close(next(results), named[name].grad, msg=name)
    for name in found.graph.buffers:
        torch.testing.assert_close(next(results), model.get_buffer(name), msg=name)
    return found


@pytest.mark.parametrize(
    "name", [name if name == "mlp" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_the_graph_computes_what_the_model_does(name):
    example = MODELS[name]()
    found = captured_as_eager(example.model, example.inputs)
    graph = found.graph
    assert [node.name for node in graph.nodes] == [node.name for node in found.module.graph.nodes]
    assert list(graph.gradients) == [name for name, _ in example.model.named_parameters()]
    assert graph.nodes[graph.loss].shape == () and graph.notes == ()
    assert msgspec.json.decode(graph.to_json(), type=OperatorGraph) == graph
    for node in graph.nodes:
        assert node.op not in ("aten.addmm.default", "aten.detach.default", "aten.alias.default"), node.name


def test_annotations_of_a_trace_that_was_broken_off_name_no_node_and_those_around_stay():
    example = gpt(batch=2)
    with traceback.annotate({"wirewise_module": "another", "users": 1}):
        graph = capture_step(example.model, example.inputs).graph
        assert traceback.current_meta["custom"] == {"wirewise_module": "another", "users": 1}
    assert "another" not in {node.module for node in graph.nodes}


def test_nodes_carry_modules_phases_and_arguments_and_blocks_fold():
    example = gpt(batch=2)
    graph = capture_step(example.model, example.inputs).graph
    products = [node for node in graph.nodes if node.module == "blocks.1.attention.qkv" and ".mm." in node.op]
    assert [node.phase for node in products] == ["forward", "backward", "backward"]
    assert products[0].roles == ("self", "mat2") and products[0].flops == 2 * 32 * 32 * 96
    splits = [node for node in graph.nodes if node.op == "aten.split.Tensor"]
    assert [node.arguments for node in splits] == [{"split_size": 32, "dim": -1}] * 2
    assert splits[0].parts == ((2, 16, 32),) * 3
    weights = {node.source: node for node in graph.nodes if node.op == "parameter"}
    assert weights["blocks.0.mlp.up.weight"].module == "blocks.0.mlp.up"
    inputs = [node for node in graph.nodes if node.op == "input"]
    assert [(node.source, node.dtype) for node in inputs] == [("0", "int64"), ("1", "int64")]
    # A sum of gradients along a residual connection belongs to the block whose input it is of.
    sums = [n for n in graph.nodes if n.phase == "backward" and n.op == "aten.add.Tensor"]
    assert [node.module for node in sums] == ["blocks.1", "blocks.1", "blocks.0", "blocks.0"]
    (one,) = graph.repeats
    assert one.prefixes == ("blocks.0", "blocks.1")
    for first, own in zip(*one.nodes, strict=True):
        a, b = graph.nodes[first], graph.nodes[own]
        assert (a.op, a.shape, a.arguments, a.phase) == (b.op, b.shape, b.arguments, b.phase)
        assert a.source.split(".")[2:] == b.source.split(".")[2:]


@pytest.mark.slow
def test_a_model_without_memory_has_the_same_graph():
    with torch.device("meta"):
        meta = gpt()
    with FakeTensorMode():
        fake = gpt()
    real = gpt()
    digests = {capture_step(one.model, one.inputs).graph.digest for one in (meta, fake, real)}
    assert len(digests) == 1


def test_buffers_that_change_and_shared_weights():
    norms = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    batch = (X, torch.tensor([0, 1, 1, 0]))
    found = captured_as_eager(
        norms, batch, lambda model, one: functional.cross_entropy(model(one[0]), one[1])
    )
    assert list(found.graph.buffers) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    tied = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16, bias=False))
    tied[1].weight = tied[0].weight
    tokens = (torch.arange(4), torch.arange(4) + 1)
    found = captured_as_eager(
        tied, tokens, lambda model, one: functional.cross_entropy(model(one[0]), one[1])
    )
    assert list(found.graph.gradients) == ["0.weight"]


def test_numbers_that_json_has_not_are_texts():
    model = Returns(lambda y: y.masked_fill(y > 0, float("-inf")).clamp(-1).sum())
    model.layer.weight.requires_grad_(False)
    graph = capture_step(model, (X,)).graph
    assert list(graph.gradients) == ["layer.bias"]
    assert {"value": "-inf"} in [node.arguments for node in graph.nodes]


def test_a_module_that_cannot_be_traced_is_taken_as_a_whole():
    torch.manual_seed(0)
    found = captured_as_eager(Around(Gate()), (X,))
    (note,) = found.graph.notes
    assert "module inner (Gate) is taken as a whole" in note and "if x.sum() > 0:" in note
    whole = [node for node in found.graph.nodes if node.op.startswith("module.")]
    assert [(n.op, n.phase) for n in whole] == [
        ("module.Gate", "forward"), ("module.Gate.backward", "backward"),
    ]  # fmt: skip
    assert {node.module for node in whole} == {"inner"}
    with pytest.raises(InputError, match=r"captured at .*if x\.sum\(\) > 0: .*torch\.where"):
        capture_step(Around(Gate()), (X,), whole=False)
    with FakeTensorMode():
        fake = Around(Gate()), (torch.randn(4, 8),)
    with pytest.raises(InputError, match=r"captured at .*if x\.sum\(\) > 0"):
        capture_step(*fake)


def _doubled(y):
    return y.sum() * (2 if y.max() > 1 else 1)


class Checked(nn.Module):
    """Looks at a value unless it is compiled, as models of transformers do with a mask; its output has a loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x, mask=None, *, weights):
        if not torch.compiler.is_compiling() and torch.all(mask == 1):
            mask = None
        x = x if mask is None else x * mask
        return SimpleNamespace(loss=(self.layer(x) * weights).sum(), logits=x)


def test_checks_of_values_that_compilers_leave_out_are_left_out_and_dicts_are_keywords():
    inputs = UserDict(x=X, weights=torch.rand(4, 1), mask=torch.ones(8))
    step = capture_step(Checked(), inputs)
    assert [node.source for node in step.graph.nodes if node.op == "input"] == ["0", "1", "2"]
    assert not step.graph.notes
    assert not torch.compiler.is_compiling()


class Optional(nn.Module):
    """Chooses by a value, and takes more than tensors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, mask=None, *, scale=1.0):
        return self.layer(x) * scale if x.sum() > 0 else x * scale


class Calling(nn.Module):
    """Calls a module with more than tensors."""

    def __init__(self):
        super().__init__()
        self.inner = Optional()

    def forward(self, x):
        return self.inner(x, None, scale=2.0).square().sum()


def test_a_module_as_a_whole_takes_more_than_tensors():
    torch.manual_seed(0)
    model = Calling()
    step = capture_step(model, (X.abs(),))
    assert "inner (Optional) is taken as a whole" in step.graph.notes[0]
    found = step.module(*step.inputs(model, (X.abs(),)))
    loss = model(X.abs())
    loss.backward()
    torch.testing.assert_close(found[0], loss.detach())
    torch.testing.assert_close(found[1], model.inner.layer.weight.grad)


def test_a_dict_that_forward_has_no_names_for_is_one_argument():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def forward(self, batch):
            return self.layer(batch["x"]).sum()

    assert capture_step(Whole(), {"x": X}).graph.loss


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Returns(_doubled), r"if y\.max\(\) > 1 else 1\) .*depends on values of tensors: compute both ways"),
        (Returns(lambda y: y[y > 0].sum()), r"y\[y > 0\].*the shape of its result depends on values"),
        (Returns(lambda y: (y * X[0]).sum()), r"y \* X\[0\].*neither a parameter nor a buffer: register_buffer"),
        (Returns(lambda y: y.sum(), other=nn.Linear(2, 2)), r"parameters other.weight, other.bias of Returns take no"),
        (Returns(lambda y: y), r"the loss of Returns is a tensor of \[4, 8\]; expected a scalar"),
        (Returns(lambda y: y.detach().sum()), "depends on no trained parameter"),
        (Returns(lambda y: 1.0), "the loss of Returns is float"),
    ],
    ids=["branch", "shape", "closure", "unused", "no-scalar", "detached", "no-tensor"],
)  # fmt: skip
def test_what_cannot_be_captured_is_refused_with_its_line(model, said):
    with pytest.raises(InputError, match=said):
        capture_step(model, (X,))


def test_a_batch_with_other_things_is_refused():
    with pytest.raises(InputError, match="got a batch with int; expected tensors only"):
        capture_step(Returns(torch.sum), (X, 3))
