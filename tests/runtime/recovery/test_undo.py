"""R15 and R2: updates taken back are those of a float64 reference, within the rounding of the step itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, Optimizer, RMSprop, SparseAdam

from wirewise.errors import InputError
from wirewise.runtime.recovery import Lamb, Lion, check_undo
from wirewise.runtime.recovery.undo import capture_update, group_settings, undo

Made = tuple[Callable[..., Optimizer], dict[str, Any]]
RATE, SHARE = st.floats(1e-4, 0.3), st.floats(0.1, 0.999)
DECAY, CHOICE = st.sampled_from([0.0, 0.01, 0.3]), st.booleans()
KERNEL = st.sampled_from([{"foreach": False}, {"foreach": True}])


def made_of(kind: type[Optimizer], **others: st.SearchStrategy) -> st.SearchStrategy[Made]:
    named = st.fixed_dictionaries({"lr": RATE, "weight_decay": DECAY, "maximize": CHOICE, **others})
    return st.tuples(st.just(kind), named)


BETAS = st.tuples(SHARE, SHARE)
PLAIN_SGD = made_of(SGD, momentum=st.sampled_from([0.0, 0.5, 0.9]), dampening=st.sampled_from([0.0, 0.3]))
NESTEROV = made_of(SGD, momentum=SHARE, nesterov=st.just(True))
ALL = st.one_of(
    PLAIN_SGD,
    NESTEROV,
    made_of(Adam, betas=BETAS),
    made_of(AdamW, betas=BETAS),
    made_of(Lamb, betas=BETAS),
    made_of(Lion, betas=BETAS),
    made_of(Adagrad, lr_decay=st.sampled_from([0.0, 0.1]), initial_accumulator_value=st.floats(0, 1)),
    made_of(RMSprop, alpha=SHARE, momentum=st.sampled_from([0.0, 0.6])),
)


def build(made: Made, parameters: list[nn.Parameter], kernel: dict[str, bool]) -> Optimizer:
    kind, options = made
    return kind(parameters, **options, **({} if kind in (Lamb, Lion) else kernel))


def draw(seed: int, step: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def copied(optimizer: Optimizer, p: nn.Parameter) -> dict[str, Any]:
    """Values of a parameter and its state."""
    state = {n: v.clone() if isinstance(v, Tensor) else v for n, v in optimizer.state.get(p, {}).items()}
    return {"p": p.detach().clone(), **state}


def step_and_undo(
    made: Made, shape: tuple[int, ...], warm: int, seed: int, dtype: torch.dtype, kernel: dict[str, bool]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What was before a step, after it, and after it is undone; a second parameter has no gradient."""
    p, idle = (nn.Parameter(draw(seed, -1, shape, dtype)) for _ in range(2))
    optimizer = build(made, [p, idle], kernel)
    for number in range(warm):
        p.grad = draw(seed, number, shape, dtype)
        optimizer.step()
    p.grad = draw(seed, warm, shape, dtype)
    nn.utils.clip_grad_norm_([p], 1.0)
    was = copied(optimizer, p)
    used = group_settings(optimizer, optimizer.param_groups[0])
    update = capture_update(optimizer, p, used)
    assert update is not None and capture_update(optimizer, idle, used) is None
    optimizer.step()
    p.grad.fill_(7.0)  # the next back-propagation writes there
    after = copied(optimizer, p)
    undo(optimizer, p, update)
    return was, after, copied(optimizer, p)


def kept_share(made: Made, name: str, was: dict[str, Any], after: dict[str, Any]) -> float:
    """What inverses divide by: the share of a value that the step kept."""
    kind, of = made
    if name == "p":
        rate = of["lr"] * float(after.get("trust_ratio", 1.0)) * of["weight_decay"]
        return abs(1 - rate) if kind in (AdamW, Lamb, Lion) else 1.0
    betas = of.get("betas", (1.0, 1.0))
    shares = {
        "exp_avg": betas[1] if kind is Lion else betas[0],
        "exp_avg_sq": betas[1],
        "square_avg": of.get("alpha", 1.0),
        "momentum_buffer": of.get("momentum", 1.0),
    }
    return shares.get(name, 1.0)


@settings(max_examples=120, deadline=None)
@given(
    made=ALL,
    shape=st.lists(st.integers(1, 5), max_size=3).map(tuple),
    warm=st.integers(0, 4),
    seed=st.integers(0, 999),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    kernel=KERNEL,
)
def test_a_step_undone_is_within_rounding(made, shape, warm, seed, dtype, kernel) -> None:
    was, after, undone = step_and_undo(made, shape, warm, seed, dtype, kernel)
    assert undone.keys() == was.keys()
    for name, value in was.items():
        if name in ("trust_ratio", "sign"):
            continue  # of the last step, and no step reads them
        if name == "step":
            assert float(undone[name]) == float(value)
            continue
        # Gradients are at most 1; the values that a step adds up may cancel.
        largest = max(1.0, float(value.abs().max()), float(after[name].abs().max()))
        bound = 24 * torch.finfo(dtype).eps * largest / max(kept_share(made, name, was, after), 1e-9)
        assert float((undone[name] - value).abs().max()) <= bound, name


@pytest.mark.parametrize("kind", [Adam, AdamW, SGD, Adagrad])
def test_fused_steps_are_undone(kind) -> None:
    more = {"momentum": 0.9} if kind is SGD else {}
    made = (kind, {"lr": 0.01, "weight_decay": 0.1, **more})
    was, _, undone = step_and_undo(made, (40,), 3, 1, torch.float32, {"fused": True})
    torch.testing.assert_close(undone, was, atol=1e-6, rtol=1e-5)


def test_momentum_set_to_0_leaves_the_buffer_as_it_is() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = SGD([p], lr=0.5, momentum=0.5)
    p.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.0
    was = copied(optimizer, p)
    update = capture_update(optimizer, p, group_settings(optimizer, optimizer.param_groups[0]))
    assert update is not None
    optimizer.step()
    undo(optimizer, p, update)
    assert torch.equal(optimizer.state[p]["momentum_buffer"], was["momentum_buffer"])
    assert torch.equal(p, was["p"])


def test_settings_are_those_of_the_step() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = SGD([p], lr=0.5)
    p.grad = torch.ones(3)
    update = capture_update(optimizer, p, group_settings(optimizer, optimizer.param_groups[0]))
    assert update is not None
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.01
    undo(optimizer, p, update)
    assert torch.equal(p, torch.ones(3))


P = nn.Parameter(torch.ones(2))
REFUSED = {
    "AMSGrad keeps the larger": lambda: Adam([P], amsgrad=True),
    "Adamax keeps the larger": lambda: Adamax([P]),
    "its gradients are sparse": lambda: SparseAdam([P]),
    "no inverse is known for this class": lambda: torch.optim.Rprop([P]),
    "1 - lr . weight_decay is 0": lambda: AdamW([P], lr=0.5, weight_decay=2.0),
    "lr . weight_decay is 0, so": lambda: Lion([P], lr=0.5, weight_decay=2.0),
    "betas.0. is 0": lambda: Adam([P], betas=(0.0, 0.9)),
    "alpha is 0": lambda: RMSprop([P], alpha=0.0),
    "rounding errors": lambda: RMSprop([P], centered=True),
    "float16": lambda: SGD([nn.Parameter(torch.ones(2, dtype=torch.float16))], lr=0.1),
    "complex64": lambda: Adam([nn.Parameter(torch.ones(2, dtype=torch.complex64))]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("reason", REFUSED)
def test_updates_that_lose_something_are_refused(reason) -> None:
    with pytest.raises(InputError, match=rf"cannot be undone: .*{reason}.*ping-pong"):
        check_undo(REFUSED[reason]())


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = SGD(table.parameters(), lr=0.1)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match="its gradient is sparse"):
        capture_update(optimizer, table.weight, group_settings(optimizer, optimizer.param_groups[0]))


def test_settings_of_own_optimizers_are_checked() -> None:
    for kind in (Lamb, Lion):
        with pytest.raises(InputError, match=r"betas=.*between 0 and 1"):
            kind([P], betas=(0.0, 0.9))


def test_own_optimizers_follow_their_papers() -> None:
    """One first step of each, by hand."""
    p = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = Lamb([p], lr=0.1, eps=0.0, weight_decay=0.0)
    p.grad = torch.tensor([2.0, -5.0])
    optimizer.step()
    # |p| = 5, the step is the sign, of length sqrt 2.
    torch.testing.assert_close(
        p.detach(), torch.tensor([3.0, 4.0]) - 0.1 * 5 / 2**0.5 * torch.tensor([1.0, -1.0])
    )
    p = nn.Parameter(torch.tensor([3.0, 4.0]))
    lion = Lion([p], lr=0.1, weight_decay=0.5)
    p.grad = torch.tensor([2.0, -5.0])
    lion.step()
    torch.testing.assert_close(p.detach(), torch.tensor([3.0 * 0.95 - 0.1, 4.0 * 0.95 + 0.1]))
    torch.testing.assert_close(lion.state[p]["exp_avg"], 0.01 * p.grad)


MODEL = [lambda m: SGD(m, lr=0.05, momentum=0.9), lambda m: Adam(m, lr=1e-3), lambda m: AdamW(m, lr=1e-3)]


def train(optimizer: Optimizer, model: nn.Module, steps: range, undos: int = 0) -> float:
    """Steps of a smooth regression, each of the first ones done, undone and done again."""
    for number in steps:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(16, 8, generator=generator)
        model.zero_grad()
        loss = (model(x) - x.sin().sum(1, keepdim=True)).square().mean()
        loss.backward()
        for _ in range(undos):
            step_taken_back(optimizer)
        optimizer.step()
    return float(loss.detach())


def step_taken_back(optimizer: Optimizer) -> None:
    (group,) = optimizer.param_groups
    updates = {p: capture_update(optimizer, p, group_settings(optimizer, group)) for p in group["params"]}
    optimizer.step()
    for p, update in updates.items():
        undo(optimizer, p, update)


@pytest.mark.parametrize("make", MODEL, ids=["momentum", "adam", "adamw"])
def test_r2_errors_stay_small(make) -> None:
    def started() -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = make(model.parameters())
        train(optimizer, model, range(20))
        return model, optimizer

    def errors(undos: int) -> dict[str, float]:
        model, optimizer = started()
        train(optimizer, model, range(20, 21))
        was = [copied(optimizer, p) for p in model.parameters()]
        for _ in range(undos):
            step_taken_back(optimizer)
        found: dict[str, float] = {}
        for p, values in zip(model.parameters(), was, strict=True):
            for name, value in copied(optimizer, p).items():
                found[name] = max(found.get(name, 0.0), float((value - values[name]).abs().max()))
        return found

    once, often = errors(1), errors(10)
    assert once["p"] <= 5e-7 and once.pop("step", 0.0) == 0
    # Moments of Adam are below 1; the buffer of SGD adds gradients up, to about 4 here.
    limits = {"momentum_buffer": 4e-7}
    assert all(error <= limits.get(name, 1e-7) for name, error in once.items() if name != "p")
    assert all(often[name] <= 10 * max(error, 1e-8) for name, error in once.items())
    (model, optimizer), (other, second) = started(), started()
    loss = train(optimizer, model, range(20, 120))
    train(second, other, range(20, 21), undos=1)
    assert abs(train(second, other, range(21, 120)) - loss) <= 1e-4
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert float((p - q).detach().abs().max()) <= 1e-4
