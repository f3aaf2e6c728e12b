"""Proof, on the first call and repeatedly later, that a model mixes rows in its convolutions and norms only.

A distributed model runs on the own rows of each rank. This equals one process if every module outside the
convolutions treats each row independently. The first call in each mode, calls after a change and every
`prove_every`-th call therefore run twice without gradients: on all own rows, recording inputs and outputs of
convolutions, and on a few of them in another order, with the recorded rows in place of the convolutions. Any
difference comes from reading other rows or row numbers: a pool, a mean over nodes, a permutation, an unknown norm.
Parameters are perturbed so that a factor initialised to zero hides nothing; dropout and noise are disabled. Each
convolution is proven in the same way: called as on one process, and called on a few targets with edges and sources in
another order.
"""

from __future__ import annotations

import contextlib
import copy
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from wirewise.errors import InputError, PeerError, WirewiseError
from wirewise.integrations.pyg.own_backward import backward_fault
from wirewise.integrations.pyg.view import GraphView
from wirewise.integrations.pyg.watch import remember

__all__ = ["Recording", "agree_on_failure", "prove"]

_ROWS = 16
_MOVED = 0.1
"""Standard deviation of what is added to parameters, in parts of their own spread."""


@dataclass
class Recording:
    """Inputs and outputs of the convolutions, in the order of their calls."""

    calls: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    rows: Tensor | None = None
    """The chosen rows in the second run."""
    position: int = 0
    given: list[Tensor] = field(default_factory=list)
    """Inputs of the convolutions in the second run."""
    replayed: list[Tensor] = field(default_factory=list)
    """Recorded outputs of the convolutions in the second run."""
    fault: str = ""
    """First fault."""
    whole: bool = True
    """Whether convolutions are also called as on one process; a repeated proof of unchanged modules skips that."""

    def note(self, fault: str) -> None:
        """Record the first fault."""
        self.fault = self.fault or fault

    def replay(self, name: str, x: Tensor) -> Tensor:
        """Return the recorded output of the next call for the chosen rows, whose input must be the recorded one."""
        if self.position >= len(self.calls) or self.calls[self.position][0] != name:
            raise _Differs(f"calls other convolutions on other rows (at {name})")
        assert self.rows is not None
        _, given, returned = self.calls[self.position]
        self.position += 1
        if not same_rows(x.detach(), given[self.rows].detach()):
            raise _Differs(
                f"computes rows for {name} that depend on other nodes' rows, or on the number of a row"
            )
        rows = returned[self.rows]
        self.given.append(x)
        if not torch.is_grad_enabled() or not rows.is_floating_point():
            return rows
        self.replayed.append(rows.requires_grad_())
        # Not the leaf itself, which no function may change in place.
        return rows.clone()


class _Differs(Exception):
    """The second run is not the first one."""


def prove(module: nn.Module, view: GraphView, args: Any, kwargs: Any, *, whole: bool = True) -> None:
    """Run `module` twice as described above, and agree on the result; a collective call.

    Args:
        module: The distributed copy.
        view: Part and edges of this rank.
        args: Arguments of the call to prove.
        kwargs: Keyword arguments of that call.
        whole: Also call each convolution as on one process; not needed again while modules are unchanged.

    Raises:
        InputError: The model mixes rows, or could not run on a subset of them.
    """
    recording = Recording(whole=whole)
    view.recording = recording
    moved, undo = _moved(module), remember(module)
    try:
        with (
            torch.no_grad(),
            _random_numbers_kept(),
            _WithoutNoise(),
            torch.autocast("cpu", enabled=False),
        ):
            out = _rows_of(_run_whole(module, moved, args, kwargs, view))
            undo()
            recording.rows = rows = _some_rows(view)
            picked = pytree.tree_map(lambda a: _pick(a, rows, view), (args, kwargs))
            try:
                with torch.set_grad_enabled(module.training):
                    again = _rows_of(_called(module, _trainable(module, moved), *picked))
                _compare(out, again, recording)
                parameters = [p for p in moved.values() if p.requires_grad]
                recording.note(
                    backward_fault([*again, *recording.given], recording.replayed, parameters)
                    if len(rows)
                    else ""
                )
            except _Differs as error:
                recording.note(str(error))
            except Exception as error:
                recording.note(
                    f"could not be run on some of the rows ({_first_line(error)}); give it what it keeps for each "
                    "node as an argument of its forward"
                )
    finally:
        view.recording = None
        undo()
    # A rank without own rows has nothing to tell.
    _agree(module, recording.fault if len(rows) else "", view)


def agree_on_failure(view: GraphView, location: str, *, failed: bool = False) -> None:
    """Agree, before each exchange of the proof, whether a rank has failed and will not participate.

    A collective call, also made by a rank whose own code has just failed, so that no rank blocks on one that has
    left.

    Args:
        view: Local part of this rank.
        location: Name of the next convolution, or of the step after the last one.
        failed: Whether this rank's own code raised an error, which it re-raises once the others know.

    Raises:
        InputError: Another rank failed, or is at another convolution.
    """
    transport = view.transport
    own = torch.tensor([failed, zlib.crc32(location.encode())], dtype=torch.int64)
    ranks = torch.stack(transport.all_gather(own, f"the proof that rows do not mix, at {location}"))
    if failed:
        return
    failures = ranks[:, 0].nonzero().flatten().tolist()
    if failures:
        raise _Met(
            f"the proof that rows do not mix ended at {location}: rank {failures[0]} could not run the model on its "
            "own rows, and says why; expected a model that runs on every part of the graph"
        )
    elsewhere = (ranks[:, 1] != own[1]).nonzero().flatten().tolist()
    if elsewhere:
        raise _Met(
            f"rank {transport.rank} came to {location} where rank {elsewhere[0]} came to another convolution or to its "
            "end; expected the same convolutions in the same order on all ranks, whatever rows they hold"
        )


class _Met(InputError):
    """The proof has failed, and all ranks know it."""


def _run_whole(module: nn.Module, moved: dict[str, Tensor], args: Any, kwargs: Any, view: GraphView) -> Any:
    """The first run, on all own rows; an error of the model's own ends the proof on all ranks."""
    try:
        out = _called(module, moved, args, kwargs)
    except (PeerError, _Met):
        raise
    except WirewiseError:
        agree_on_failure(view, "an error", failed=True)
        raise
    except Exception as error:
        agree_on_failure(view, "an error", failed=True)
        raise InputError(
            f"{type(module).__name__} could not be run on the own rows of rank {view.transport.rank} "
            f"({_first_line(error)}); expected a model that runs on every part of the graph, also on nodes "
            "without edges"
        ) from error
    agree_on_failure(view, "the end of the forward")
    return out


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0][:160] if str(error) else ""
    return f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Leave the generators of torch, numpy and Python as they are."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def _agree(module: nn.Module, fault: str, view: GraphView) -> None:
    transport = view.transport
    found = torch.zeros(transport.world_size, dtype=torch.int64)
    found[transport.rank] = bool(fault)
    transport.all_reduce(found, "proof that rows do not mix")
    if int(found.sum()):
        where = f"rank {transport.rank}" if fault else f"rank {int(found.argmax())}, which says how"
        raise InputError(
            f"{type(module).__name__} {fault or 'mixes rows of nodes outside its convolutions'} (found on {where}); "
            "expected that only convolutions and known norms look at other nodes, since a rank has its own rows only. "
            "Leave out pooling, means over nodes, permutations and positions, or train on one process"
        )


def _called(module: nn.Module, moved: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
    # Torch would find ties by itself, and leave a module that has two names with the moved tensors.
    return torch.func.functional_call(module, moved, args, kwargs, tie_weights=False)


def _moved(module: nn.Module) -> dict[str, Tensor]:
    """Parameters with a little noise and copies of the buffers, once for each module that holds one."""
    generator = torch.Generator().manual_seed(1)
    made: dict[int, Tensor] = {}
    moved: dict[str, Tensor] = {}
    for prefix, inner in module.named_modules():
        held = [*inner.named_parameters(prefix, recurse=False), *inner.named_buffers(prefix, recurse=False)]
        for name, tensor in held:
            if id(tensor) not in made:
                made[id(tensor)] = _with_noise(tensor, generator)
            moved[name] = made[id(tensor)]
    return moved


def _trainable(module: nn.Module, moved: dict[str, Tensor]) -> dict[str, Tensor]:
    """The moved tensors, of which those of trained parameters require a gradient where gradients are enabled."""
    if torch.is_grad_enabled():
        trained = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
        for name in trained & moved.keys():
            moved[name].requires_grad_()
    return moved


def _with_noise(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A copy, moved a little where it is a parameter."""
    value = tensor.detach().clone()
    if not isinstance(tensor, nn.Parameter) or not value.is_floating_point() or not value.numel():
        return value
    noise = torch.randn(value.shape, generator=generator).to(value)
    spread = value.float().std(unbiased=False).clamp(min=0.5).to(value)
    return value + _MOVED * spread * noise


def _some_rows(view: GraphView) -> Tensor:
    own = view.part.num_own
    generator = torch.Generator().manual_seed(3)
    return torch.randperm(own, generator=generator)[: min(_ROWS, (own + 1) // 2)]


def _pick(value: Any, rows: Tensor, view: GraphView) -> Any:
    if isinstance(value, Data):
        picked = copy.copy(value)
        for key, item in value.to_dict().items():
            picked[key] = _pick(item, rows, view)
        return picked
    if not isinstance(value, Tensor) or value is view.token or value.dim() == 0 or view.is_of_edges(value):
        return value
    # Without the graph of a model that computed it: its gradients are proven with that one.
    return (value[rows] if value.shape[0] == view.part.num_own else value).detach()


def _rows_of(out: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]


def _compare(first: list[Tensor], second: list[Tensor], recording: Recording) -> None:
    assert recording.rows is not None
    if recording.position != len(recording.calls) or len(first) != len(second):
        raise _Differs("calls other convolutions on other rows")
    for whole, some in zip(first, second, strict=True):
        if whole.dim() == 0 or not same_rows(some.detach(), whole[recording.rows]):
            raise _Differs("returns rows that depend on other nodes' rows, or on the number of a row")


def same_rows(actual: Tensor, expected: Tensor) -> bool:
    """Whether both are equal up to the rounding of their dtype."""
    if actual.shape != expected.shape:
        return False
    if not actual.is_floating_point() or not actual.numel():
        return torch.equal(actual, expected)
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(actual.dtype, 3e-2)
    scale = float(torch.nan_to_num(expected).abs().max())
    return torch.allclose(actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


class _WithoutNoise(TorchFunctionMode):
    """Dropout passes rows on and random numbers are constants."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if "dropout" in name:
            return args[0] if args else kwargs["input"]
        if name in ("rand", "randn", "rand_like", "randn_like"):
            kwargs.pop("generator", None)
            if name.endswith("_like"):
                return torch.full_like(args[0], 0.5, **kwargs)
            return torch.zeros(*args, **kwargs) + 0.5
        return func(*args, **kwargs)
