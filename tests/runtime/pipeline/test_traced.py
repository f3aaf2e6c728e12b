"""Models with a forward pass of their own, cut into layers and trained in stages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.pipeline.examples import outputs, parameters_of, plan_for, worst
from wirewise.errors import InputError
from wirewise.profile import stage_trace
from wirewise.runtime.pipeline import LayerGraph, Pipeline

VOCABULARY = 11


class Twofold(nn.Module):
    """Two convolutions; the activation changes its input in place."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second, self.act = nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.second(self.act(self.norm(self.first(x)))))


class UNet(nn.Module):
    """Skip connections kept in a list, sizes read from tensors, an argument with a default."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Twofold(1, 2)
        self.downs = nn.ModuleList([Twofold(2 * 2**k, 4 * 2**k) for k in range(2)])
        self.ups = nn.ModuleList([nn.ConvTranspose2d(4 * 2**k, 2 * 2**k, 2, 2) for k in (1, 0)])
        self.joins = nn.ModuleList([Twofold(4 * 2**k, 2 * 2**k) for k in (1, 0)])
        self.last = nn.Conv2d(2, 1, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        skips, x = list[Tensor](), self.first(x)
        for down in self.downs:
            skips.append(x)
            x = down(functional.max_pool2d(x, 2))
        for up, join in zip(self.ups, self.joins, strict=True):
            skip = skips.pop()
            _, _, high, wide = skip.shape
            x = join(torch.cat([skip, up(x)[:, :, :high, :wide]], dim=1))
        return self.last(x if mask is None else x * mask)


class Translator(nn.Module):
    """An encoder whose output all layers of the decoder take."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(VOCABULARY, 8) for _ in range(2)])
        self.places = nn.ParameterList([torch.randn(4, 8) for _ in range(2)])
        make = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(**make) for _ in range(3)])
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(**make) for _ in range(3)])
        self.head = nn.Linear(8, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1] // 2
        memory = self.embeddings[0](x[:, :length]) + self.places[0][:length]
        for layer in self.encoder:
            memory = layer(memory)
        y = self.embeddings[-1](x[:, length:]) + self.places[-1][:length]
        for layer in self.decoder:
            y = layer(y, memory)
        return self.head(y)


class Shared(Translator):
    """One embedding and one table of places for both texts, and for the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.places = self.embeddings[:1], self.places[:1]
        self.head.weight = self.embeddings[0].weight


def _model(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    return kind().double()


def _batch(kind: type[nn.Module], rows: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(rows)
    if kind is UNet:
        x = torch.randn(rows, 1, 8, 8, generator=random, dtype=torch.float64)
        return x, x.flip(2)
    x = torch.randint(0, VOCABULARY, (rows, 8), generator=random)
    return x, x[:, 4:].clone()


def _loss(output: Tensor, target: Tensor) -> Tensor:
    if output.dim() == 3:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())
    return (output - target).square().mean()


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def _trained_as_one(kind: type[nn.Module], plan: Any, updates: int) -> dict[str, Tensor]:
    """Weights of the model itself after microbatch by microbatch in one process."""
    model = _model(kind)
    optimizer = _sgd(model.parameters())
    for _ in range(updates):
        x, y = _batch(kind, plan.microbatches * plan.microbatch_size)
        for a, b in zip(x.split(plan.microbatch_size), y.split(plan.microbatch_size), strict=True):
            (_loss(model(a), b) / plan.microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in parameters_of(LayerGraph(model)).items()}


def _trained_in_stages(kind: type[nn.Module], plan: Any, updates: int) -> dict[str, Tensor]:
    built = [LayerGraph(_model(kind)) for _ in range(plan.world_size)]

    def body(rank: int, group: Any, store: Any) -> Any:
        pipeline = Pipeline(
            built[rank], plan, loss=_loss, optimizer=_sgd, process_group=group, store=store, timeout_s=20
        )  # fmt: skip
        batch = _batch(kind, plan.microbatches * plan.microbatch_size)
        list(pipeline.train([batch] * updates))
        pipeline.close()
        return {n: p.detach() for n, p in pipeline.weights.named.items()}

    return {n: p for one in run_ranks_as_threads(plan.world_size, body) for n, p in one.items()}


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("style", ["1f1b", "eager-split"])
def test_a_unet_trains_in_stages_as_in_one_process(style: str) -> None:
    plan = plan_for(LayerGraph(_model(UNet)), 3, style=style, microbatches=3)
    assert any(target - source > 1 for source, target in plan.edges)
    found = _trained_in_stages(UNet, plan, 3)
    assert worst(found, _trained_as_one(UNet, plan, 3)) <= 1e-12


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("style", ["1f1b", "eager-split"])
def test_an_encoder_whose_output_goes_to_all_layers_of_the_decoder(style: str) -> None:
    layers = LayerGraph(_model(Translator))
    assert [name for name, taken in layers.sources.items() if "encoder.2" in taken] == [
        "decoder.0", "decoder.1", "decoder.2",
    ]  # fmt: skip
    plan = plan_for(layers, 6, style=style, microbatches=3)
    assert sum(value.name == "encoder.2" for value in layers.values(plan)) == 2
    found = _trained_in_stages(Translator, plan, 3)
    assert worst(found, _trained_as_one(Translator, plan, 3)) <= 1e-12


@pytest.mark.parametrize("kind", [UNet, Translator, Shared])
def test_layers_compute_what_the_model_does(kind: type[nn.Module]) -> None:
    model = _model(kind)
    layers, again = LayerGraph(model), LayerGraph(_model(kind))
    assert layers.names == again.names and layers.sources == again.sources
    x, _ = _batch(kind, 2)
    assert torch.equal(outputs(layers, x), model(x))
    assert set(parameters_of(layers).values()) == set(model.parameters())


def test_submodules_that_are_named_stay_whole() -> None:
    model = _model(UNet)
    assert "downs.1.first" in LayerGraph(model).names
    found = LayerGraph(model, whole=("downs.*", "joins.*"))
    assert found.modules["downs.1"] is model.get_submodule("downs.1")
    assert not any(name.startswith("downs.1.") for name in found.names)
    with pytest.raises(
        InputError, match=r"whole has \['up'\], which no submodule is called; there are: first"
    ):
        LayerGraph(model, whole=("up",))


def test_a_model_is_measured_as_its_layers() -> None:
    layers = LayerGraph(_model(UNet))
    found = stage_trace(layers.modules, _batch(UNet, 2)[0], sources=layers.sources, repeats=1)
    assert [module.name for module in found.modules] == list(layers.names) and not found.is_chain
    with pytest.raises(InputError, match=r"got a UNet with a forward pass of its own.*LayerGraph\(model\)"):
        stage_trace(_model(UNet), _batch(UNet, 2)[0])


class Root(nn.Module):
    """A model around a function of itself and its input."""

    def __init__(self, body: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.body = nn.Linear(4, 4), nn.Linear(4, 4), body
        self.inner = Inner()

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


class Inner(nn.Module):
    """What cannot be followed: it looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x) if float(x.detach().sum()) > 0 else x


def _frozen(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = self.a(x)
    return self.b(y)


def _branch(self: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        return self.a(x)
    return self.b(x)


def _kept(self: Any, x: Tensor) -> Tensor:
    self.hidden = self.a(x)
    return self.b(self.hidden)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (_branch, r"test_traced.py:\d+: if x.sum\(\) > 0: .*move these lines into a submodule"),
        (_frozen, "gradients or autocast are switched"),
        (_kept, "keeps a tensor of its forward pass as an attribute"),
        (lambda self, x: (self.a(x), self.b(x)), "Root returns a tuple"),
        (lambda self, x: self.b(x.add_(1)), "changes the model's input in place"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_place(body: Any, said: str) -> None:
    model = Root(body)
    before = dict(model.__dict__)
    with pytest.raises(InputError, match=said):
        LayerGraph(model)
    assert model.__dict__ == before


def _tuple_inside(self: Any, x: Tensor) -> Tensor:
    left, right = self.a(x).chunk(2, dim=-1)
    return self.b(torch.cat([right, left * x.size(0)], dim=-1))


def _in_place(self: Any, x: Tensor) -> Tensor:
    y = self.a(x)
    z = y.view(-1, 2, 2)
    kept = self.b(y)
    z.mul_(2)
    return self.inner(y) + kept


@pytest.mark.parametrize(
    "body", [_tuple_inside, _in_place, lambda self, x: self.inner(self.inner(self.a(x)))]
)
def test_tuples_changes_in_place_and_what_branches_stay_in_one_layer(body: Any) -> None:
    torch.manual_seed(1)
    model = Root(body)
    layers, x = LayerGraph(model), torch.randn(3, 4)
    assert torch.equal(outputs(layers, x), model(x))
    assert all(
        isinstance(module(*(x for _ in layers.sources[n])), Tensor) for n, module in layers.modules.items()
    )


class Checked(nn.Module):
    """Looks at sizes outside any submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.places, self.out = nn.Embedding(9, 4), nn.Embedding(6, 4), nn.Linear(4, 9)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        assert x.shape[1] <= 6, "too long"
        return self.out(self.rows(x) + self.places(torch.arange(x.shape[1], device=x.device)))


@pytest.mark.slow
def test_what_torch_has_exported_are_layers_of_the_same_parameters() -> None:
    torch.manual_seed(0)
    model, x = Checked(), torch.randint(0, 9, (4, 6))
    with pytest.raises(InputError, match=r"test_traced.py:\d+: assert .*torch.export.export"):
        LayerGraph(model)
    rows = ({0: torch.export.Dim.AUTO},)
    layers = LayerGraph(torch.export.export(model, (x,), dynamic_shapes=rows).module(check_guards=False))
    assert len(layers.names) > 1 and torch.equal(outputs(layers, x[:2]), model(x[:2]))
    assert set(parameters_of(layers).values()) == set(model.parameters())


def test_arguments_that_have_no_default_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    with pytest.raises(InputError, match=r"takes \['x', 'y'\]; expected one tensor"):
        LayerGraph(Two())


def test_what_belongs_to_a_model_alone_or_to_a_list_alone_is_refused() -> None:
    with pytest.raises(InputError, match="which says them itself"):
        LayerGraph(_model(UNet), {"last": ("first",)})
    with pytest.raises(InputError, match="for a list of modules"):
        LayerGraph([nn.Linear(2, 2)], whole=("0",))


def test_a_model_that_takes_its_targets_too():
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor, target: Tensor, weight: float = 1.0) -> Tensor:
            return weight * functional.cross_entropy(self.out(self.layer(x)), target.flatten() - 1)

    layers = LayerGraph(WithLoss(), several=True)
    assert layers.inputs == ("input", "input:target") and layers.sources[layers.output][-1] == "input:target"
    with pytest.raises(InputError, match=r"takes \['x', 'target', 'weight'\]; expected one tensor"):
        LayerGraph(WithLoss())


def test_a_buffer_of_the_model_itself():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
            self.register_buffer("shift", torch.arange(6.0))
            self.places = nn.Embedding(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.layer(x) + self.places(self.shift.long()).sum(0) + self.shift)

    model = Shifted()
    layers, x = LayerGraph(model), torch.ones(2, 4)
    # An embedding of places has no rows of its own.
    assert layers.names == ("layer", "places", "add_1", "out") and torch.equal(outputs(layers, x), model(x))


class _Waiting(nn.Module):
    """Reports that its forward pass began, and waits in it."""

    def __init__(self, began: threading.Event, go_on: threading.Event) -> None:
        super().__init__()
        self.linear, self.report, self.wait = nn.Linear(4, 4), began.set, go_on.wait

    def forward(self, x: Tensor) -> Tensor:
        self.report()
        self.wait(10)
        return self.linear(self.linear(x))


def test_threads_trace_one_after_the_other_and_run_models_meanwhile() -> None:
    call, plain, x = nn.Module.__call__, nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4)
    expected = plain(x)
    began, go_on = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(LayerGraph, _Waiting(began[0], go_on[0]))
        assert began[0].wait(10)
        assert torch.equal(plain(x), expected)  # goes through what the first thread's tracer put in place
        second = threads.submit(LayerGraph, _Waiting(began[1], go_on[1]))
        began[1].wait(0.3)
        go_on[0].set()
        first.result()
        go_on[1].set()
        second.result()
    assert nn.Module.__call__ is call
    assert torch.equal(plain(x), expected)
