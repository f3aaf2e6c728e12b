"""One or two versions of a rank's weights, switched by swapping parameters in their modules, without copies.

Each version has separate parameters, so a backward pass finds the weights of its forward pass in its graph, whatever
the modules hold by then, and gradients of two updates never mix. An optimizer knows the original parameters alone;
their storage is that of the newest version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.runtime.pipeline.dtensors import local_part, own_gradient, set_memory

__all__ = ["Weights"]


class Weights:
    """Trained parameters of a rank's stages in one or two versions.

    Version v holds the weights after v updates. With two, the newest and the previous one are kept; update t applies
    gradients of version t - 1 to the newest, version t, and writes version t + 1 over t - 1.

    Args:
        modules: Modules of all stages of the rank by name.
        versions: Number of versions, 1 or 2.
    """

    def __init__(self, modules: Mapping[str, nn.Module], versions: Literal[1, 2]) -> None:
        self._slots: list[tuple[nn.Module, str, nn.Parameter]] = []
        self.named: dict[str, nn.Parameter] = {}
        """Original parameters, those that an optimizer has, each under its first name."""
        known: set[nn.Parameter] = set()
        for name, module in modules.items():
            for path, owner in module.named_modules(remove_duplicate=False):
                for attribute, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
                    if parameter.requires_grad:
                        self._slots.append((owner, attribute, parameter))
                        if parameter not in known:
                            known.add(parameter)
                            self.named[".".join(part for part in (name, path, attribute) if part)] = parameter
        self.newest = 0
        """Updates that the newest version has seen."""
        self.versions = versions
        """Number of versions that are kept."""
        self._versions: list[dict[nn.Parameter, nn.Parameter]] = [{p: p for p in self.named.values()}]
        self._installed: dict[nn.Parameter, nn.Parameter] = {p: p for p in self.named.values()}

    def copy_versions(self) -> None:
        """Create the versions from the current weights; called once, when all ranks have equal ones."""
        if self.versions == 2:
            self._versions = [
                {p: nn.Parameter(p.detach().clone() if copied else p.data) for p in self.named.values()}
                for copied in (False, True)
            ]

    def use(self, version: int) -> None:
        """Install a version's parameters in the modules."""
        oldest = max(self.newest - self.versions + 1, 0)
        assert oldest <= version <= self.newest, f"version {version} of {oldest} to {self.newest}"
        self._install(self._versions[version % self.versions])

    def take_gradients(self, version: int) -> dict[str, Tensor]:
        """Take this rank's accumulated gradients of a version, and reset them."""
        found = {}
        for name, original in self.named.items():
            own = self._versions[version % self.versions][original]
            gradient = own_gradient(own)
            if gradient is not None:
                found[name] = gradient
            own.grad = None
        return found

    def drop_gradients(self) -> None:
        """Drop the accumulated gradients of all versions."""
        for version in self._versions:
            for parameter in version.values():
                parameter.grad = None

    @torch.no_grad()
    def advance(self) -> dict[str, Tensor]:
        """Start the next version as a copy of the newest, in the memory of the oldest.

        The original parameters then use that memory, so that an optimizer changes them in place.

        Returns:
            The previous newest version, by name; for a single version, the weights themselves.
        """
        before = {n: self._versions[self.newest % self.versions][p].detach() for n, p in self.named.items()}
        self.newest += 1
        if self.versions == 2:
            following = self._versions[self.newest % 2]
            if self.named:
                torch._foreach_copy_(
                    [local_part(following[p]) for p in self.named.values()],
                    [local_part(one) for one in before.values()],
                )
            for parameter in self.named.values():
                set_memory(parameter, following[parameter])
        return before

    def originals(self) -> None:
        """Install the original parameters in the modules: the newest version, as users know it."""
        self._install({p: p for p in self.named.values()})

    def state(self) -> list[dict[str, Tensor]]:
        """Copies of the versions, the newest last."""
        numbers = range(self.newest - self.versions + 1, self.newest + 1)
        return [
            {n: self._versions[v % self.versions][p].detach().clone() for n, p in self.named.items()}
            for v in numbers
        ]

    @torch.no_grad()
    def load(self, state: Iterable[Mapping[str, Tensor]], newest: int) -> None:
        """Load versions from `state`.

        Args:
            state: Versions, the newest last.
            newest: Number of updates in the newest version.

        Raises:
            InputError: The number of versions, or the parameters, differ.
        """
        given = list(state)
        if len(given) != self.versions or any(one.keys() != self.named.keys() for one in given):
            raise InputError(
                f"the checkpoint has {len(given)} versions of {sorted(given[0])[:8] if given else []}; expected "
                f"{self.versions} of {sorted(self.named)[:8]}: load the file of this rank, under the same plan"
            )
        self.newest = newest
        for number, version in enumerate(given, newest - self.versions + 1):
            for name, original in self.named.items():
                local_part(self._versions[number % self.versions][original]).copy_(local_part(version[name]))
        for original in self.named.values():
            set_memory(original, self._versions[newest % self.versions][original])

    def _install(self, chosen: Mapping[nn.Parameter, nn.Parameter]) -> None:
        if all(self._installed[p] is own for p, own in list(chosen.items())[:1]):
            return
        for owner, attribute, original in self._slots:
            # Not into `_parameters`: recurrent layers keep a list beside it.
            setattr(owner, attribute, chosen[original])
        self._installed = dict(chosen)
