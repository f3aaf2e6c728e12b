"""Evaluation of a sharded model: the plain model, with parameters gathered block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wirewise.errors import WirewiseError
from wirewise.runtime.parallel.step import StepRunner

__all__ = ["Evaluation", "Places"]

Places = Mapping[str, Sequence[tuple[nn.Module, str]]]
"""Modules and attributes that hold each parameter, by its name."""


class Evaluation:
    """Forward passes of the plain model on batches of any size, computed by every rank.

    Blocks, which are the entries of the outermost lists of modules, have whole parameters while they run; what lies
    outside of blocks has them during the whole pass.

    Args:
        model: Plain model, whose parameters are this rank's shards.
        runner: This rank's part of the step, which gathers parameters.
        places: Where the parameters of the step are held.
    """

    def __init__(self, model: nn.Module, runner: StepRunner, places: Places) -> None:
        self._model, self._runner, self._places = model, runner, places
        self._blocks = {block: self._names_in(set(block.modules())) for block in _blocks(model)}
        inside = {module for block in self._blocks for module in block.modules()}
        self._outside = self._names_in(set(model.modules()) - inside)
        self._present: Counter[str] = Counter()

    def _names_in(self, modules: set[nn.Module]) -> list[str]:
        return [name for name, places in self._places.items() if any(own in modules for own, _ in places)]

    def __call__(
        self, parts: Mapping[str, Tensor | None], args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Output of the plain model in evaluation mode, the same on all ranks, without gradients.

        Args:
            parts: This rank's part of each parameter, None if another stage has it.
            args: Arguments of the model, the same on all ranks.
            named: Arguments by name.

        Raises:
            PeerError: A peer is gone.
        """
        self._runner.share_all_buffers(dict(self._model.named_buffers()))
        mode, self._model.training = self._model.training, False
        try:
            with torch.no_grad():
                return self._run(parts, args, named)
        finally:
            self._model.training = mode

    def _run(self, parts: Mapping[str, Tensor | None], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        try:
            with self._whole(parts, self._outside), self._whole_in_blocks(parts):
                return self._model(*args, **named)
        except WirewiseError:
            raise
        except Exception:
            # A model may take parameters of a block without calling it. All ranks fail at the same place, and have all
            # parameters at once then; what else is wrong fails again.
            with self._whole(parts, list(self._places)):
                return self._model(*args, **named)

    @contextmanager
    def _whole_in_blocks(self, parts: Mapping[str, Tensor | None]) -> Iterator[None]:
        entered: dict[nn.Module, list[ExitStack]] = {block: [] for block in self._blocks}

        def enter(block: nn.Module, _args: Any) -> None:
            entered[block].append(ExitStack())
            entered[block][-1].enter_context(self._whole(parts, self._blocks[block]))

        def leave(block: nn.Module, _args: Any, _result: Any) -> None:
            if entered[block]:
                entered[block].pop().close()

        with ExitStack() as hooks:
            for block in self._blocks:
                for hook in (
                    block.register_forward_pre_hook(enter, prepend=True),
                    block.register_forward_hook(leave, always_call=True),
                ):
                    hooks.callback(hook.remove)
            yield

    @contextmanager
    def _whole(self, parts: Mapping[str, Tensor | None], names: Sequence[str]) -> Iterator[None]:
        """Whole parameters at all of their places; those that are there already stay."""
        before: list[tuple[nn.Module, str, nn.Parameter | None]] = []
        for name in names:
            self._present[name] += 1
            if self._present[name] > 1:
                continue
            whole = nn.Parameter(self._runner.whole_parameter(name, parts[name]), requires_grad=False)
            for module, attribute in self._places[name]:
                before.append((module, attribute, module._parameters[attribute]))
                module._parameters[attribute] = whole
        try:
            yield
        finally:
            self._present.subtract(names)
            for module, attribute, part in before:
                module._parameters[attribute] = part


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Entries of the outermost lists of modules, each once."""
    seen: set[nn.Module] = set()
    for child in module.children():
        if isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            found = [child]
        else:
            found = list(_blocks(child))
        for block in found:
            if block not in seen:
                seen.add(block)
                yield block
