"""Weight updates that a failure never leaves half done: completed or rolled back, bucket by bucket.

A step is counted by the state that it leaves. While step c + 1 is in progress, each bucket of parameters has version c
or c + 1, written after its data, and the committed step is written last, after all buckets, schedules and the snapshot
of what else a step changes. So a rank always knows the step of each of its parameters, and can restore one step for
all: forward to c + 1 if it has the reduced gradients of the buckets without the update, which loses nothing; or back,
by one of three journals:

- "ping-pong": values before the update in a second buffer; any optimizer, bit by bit, parameters and state once more;
- "undo": the inverse of the update; gradients once more, close but never bit-equal, not for all optimizers (`undo`);
- "journal": the inverse, and the compressed difference of its bits to those before: bit by bit in about a fifth of the
  memory, for the time of another update and its compression in each step;
- "roll-forward": nothing is kept, so an update that has begun cannot be taken back;
- "auto": "roll-forward" with one bucket, whose update begins when all gradients are there, so that it can always be
  finished; else "ping-pong" where a quarter of the free memory holds the buffers, else "undo", else "roll-forward".

With a journal the last committed update can be rolled back too, until the next one begins.

A step has two states of values that a script changes itself, such as `param_groups` or an average of the weights: that
at the end of the update ("before"), and that after the script's code following the update ("after", `seal`). A rank
that is brought to a step takes the first and runs that code, or takes the second and does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wirewise.errors import InputError
from wirewise.memory import available_bytes
from wirewise.runtime.recovery.decision import Phase
from wirewise.runtime.recovery.journals import JOURNALS, BucketParameter, Consistency
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.recovery.undo import check_undo
from wirewise.runtime.trees import copy_into

__all__ = ["Consistency", "Updates", "check_apart"]

_LOST = -1
"""Committed step of a rank that holds no whole state."""
_SHARE = 4
"""Buffers of "auto" take at most this part of the free memory."""


class Updates:
    """Updates of a training on this rank, and recovery from any point within one to a consistent step.

    Args:
        state: State of the training; its optimizers step, and its schedules are stepped once per update.
        buckets: Parameters updated together, one list per bucket. Defaults to one bucket, updated after all gradients
            are reduced.
        consistency: Way in use, with "auto" resolved.
        clip: Maximum norm of all gradients together. None for no clipping.
        step: Current step of the state.
        prepare: Called by `step` with the next step, before any update, to store what no replica has, and to wait
            until all ranks have; the step cannot be completed until it returns. With one bucket only.
        on_commit: Called with the step about to be committed, once per step on each rank; its changes to the state
            are part of the step. It must not communicate, as it also runs between two process groups.

    Attributes:
        committed_step: Last complete step of this rank; -1 if an update failed midway and the state must be copied.
        consistency: Way that is followed, "auto" resolved.

    Raises:
        InputError: Updates of an optimizer cannot be taken back in this way, buckets do not hold each trained
            parameter once, or several buckets are combined with an option that needs all gradients at once.
    """

    def __init__(
        self,
        state: TrainingState,
        *,
        buckets: Sequence[Sequence[nn.Parameter]] | None = None,
        consistency: Consistency = "auto",
        clip: float | None = None,
        step: int = 0,
        prepare: Callable[[int], None] | None = None,
        on_commit: Callable[[int], None] | None = None,
    ) -> None:
        self.state, self._clip, self._prepare, self._on_commit = state, clip, prepare, on_commit
        members = [
            BucketParameter(optimizer, group, parameter)
            for optimizer in state.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self._counts = [sum(len(g["params"]) for g in one.param_groups) for one in state.optimizers]
        self._buckets = _split(members, buckets)
        if len(self._buckets) > 1:
            check_apart(clip, state.scaler, prepare)
        self.consistency = _chosen(state, self._buckets) if consistency == "auto" else consistency
        if self.consistency in ("undo", "journal"):
            for optimizer in state.optimizers:
                check_undo(optimizer)
        elif self.consistency not in JOURNALS:
            raise InputError(f"consistency is {consistency!r}; expected one of auto, {', '.join(JOURNALS)}")
        self._journals = [JOURNALS[self.consistency]() for _ in self._buckets]
        self.committed_step = _LOST
        self._versions: list[int] = []
        self._reduced: list[bool] = []
        self._snapshots: dict[int, Any] = {}
        self._sealed: dict[int, Any] = {}
        self._old_snapshot: Any = None
        self._old_seal: Any = None
        self._adopted = _LOST
        self._moved = 0
        self.adopt(step)

    @property
    def versions(self) -> tuple[int, ...]:
        """Step of each bucket's parameters."""
        return tuple(self._versions)

    @property
    def reduced(self) -> tuple[bool, ...]:
        """Whether each bucket has the reduced gradients of the next step."""
        return tuple(self._reduced)

    @property
    def begun(self) -> bool:
        """Whether an update is in progress."""
        return any(version > self.committed_step for version in self._versions)

    @property
    def sealed(self) -> bool:
        """Whether the state after the script's own code of the committed step is stored."""
        return self.committed_step in self._sealed

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of the committed step with stored states, for ranks that copy one."""
        before: tuple[Phase, ...] = () if self._adopted == self.committed_step else ("before",)
        return (*before, "after") if self.sealed else before

    @property
    def can_restore(self) -> bool:
        """Whether the last update, partial or complete, can be rolled back."""
        if self.consistency == "roll-forward" or self.committed_step == _LOST:
            return False
        return self.begun or self.committed_step - 1 in self._snapshots

    @property
    def exact(self) -> bool:
        """Whether a rollback is bit-exact."""
        return self.consistency != "undo"

    @property
    def journal_bytes(self) -> int:
        """Memory used by values of the last update, in bytes."""
        return sum(journal.size_bytes for journal in self._journals)

    def mark_reduced(self, bucket: int) -> None:
        """Mark the gradients of a bucket as reduced over all ranks."""
        self._reduced[bucket] = True

    def update_bucket(self, bucket: int) -> None:
        """Update the parameters of a bucket whose gradients are reduced.

        Raises:
            InputError: The gradients are not reduced, the bucket is already updated, or the update cannot be undone.
        """
        if (
            self.committed_step == _LOST
            or not self._reduced[bucket]
            or self._versions[bucket] > self.committed_step
        ):
            raise InputError(
                f"bucket {bucket} has version {self._versions[bucket]} at step {self.committed_step}, reduced: "
                f"{self._reduced[bucket]}; expected reduced gradients of the step to come, once a bucket"
            )
        if not self.begun:
            self._begin()
        members, journal = self._buckets[bucket], self._journals[bucket]
        journal.keep(members)
        try:
            with torch.no_grad():
                stepped = [self._step(optimizer, members) for optimizer in self.state.optimizers]
        except BaseException:
            # No rank but this one failed, and its parameters may be of two steps.
            if self.consistency == "ping-pong":
                journal.restore()
            else:
                self.committed_step = _LOST
            raise
        journal.seal(stepped=any(stepped))
        self._versions[bucket] = self.committed_step + 1

    def step(self) -> None:
        """Update the remaining buckets and commit; the gradients of all buckets must be reduced.

        Raises:
            InputError: An update cannot be undone, or this rank holds no complete state.
        """
        if self._prepare is not None:
            self._prepare(self.committed_step + 1)
        # From here on no other rank is needed.
        self._reduced = [True] * len(self._buckets)
        self._finish()

    def restore_step(self, step: int) -> None:
        """Bring this rank to a complete step by its own means.

        Args:
            step: The committed step, the next one if all gradients are available, or the previous one.

        Raises:
            InputError: This rank cannot reach the step; copy a state and call `adopt`.
        """
        now = self.committed_step
        if step == now + 1 and now != _LOST and all(self._reduced):
            self._finish()
        elif step == now and (not self.begun or self.can_restore):
            self._restore([b for b, version in enumerate(self._versions) if version > now])
            self._set(step)
        elif step == now - 1 and not self.begun and self.can_restore:
            self._restore(range(len(self._buckets)))
            del self._snapshots[now]
            self._set(step)
        else:
            raise InputError(
                f"this rank is at step {now}, buckets at {sorted(set(self._versions))}, with reduced gradients of "
                f"{sum(self._reduced)} of {len(self._reduced)} buckets and {self.consistency!r}; it cannot come to "
                f"step {step} by itself: copy the state of a rank that can"
            )

    def adopt(self, step: int) -> None:
        """Declare the current parameters and optimizer states as those of a step, for example after `copy_state`.

        State of this rank alone is kept, unless this rank had been at that step before.
        """
        if step in self._snapshots:
            self.state.load_own(self._snapshots[step]["own"])
        self._snapshots, self._sealed = {step: self._snapshot()}, {}
        self._adopted = _LOST
        self._clear(step)

    def adopt_sealed(self, step: int) -> None:
        """Like `adopt`, for the state after the script's own code; the state right after the update is unknown."""
        self.adopt(step)
        self.seal()
        self._adopted = step

    def seal(self) -> None:
        """Store the script's changes since the update as part of the committed step."""
        if not self.sealed:
            self._check_groups()
            light, self._old_seal = copy_into(self.state.light(), self._old_seal), None
            self._sealed[self.committed_step] = light

    def _check_groups(self) -> None:
        """Raise if the script has given an optimizer other parameters: nobody would reduce or copy them.

        Raises:
            InputError: The message names the optimizer.
        """
        for number, optimizer in enumerate(self.state.optimizers):
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            if count != self._counts[number]:
                raise InputError(
                    f"optimizer {number} ({type(optimizer).__name__}) has {count} parameters, and had "
                    f"{self._counts[number]} when protect() was called; expected all groups before protect(), without "
                    "add_param_group after it"
                )

    def rewind(self) -> None:
        """Undo changes since `seal`, or since the update if there was none, except to parameters."""
        self.state.load_replicated_state(
            copy_into(self.replicated_state_of("after" if self.sealed else "before"))
        )
        self.state.load_own(copy_into(self._snapshots[self.committed_step]["own"]))

    def unseal(self) -> None:
        """Undo the script's changes after the update, except to parameters."""
        self._sealed.pop(self.committed_step, None)
        self.rewind()

    def replicated_state_of(self, phase: Phase) -> Any:
        """State of the committed step in one of `phases`, without parameters and their state, by reference."""
        step = self.committed_step
        return self._sealed[step] if phase == "after" else self._snapshots[step]["light"]

    def announce(self, step: int) -> None:
        """Call `on_commit` for a step committed by another rank, whose state will be copied."""
        if self._on_commit is not None:
            self._on_commit(step)

    @contextmanager
    def in_backward(self, reduce: Callable[[int, list[Tensor]], None]) -> Iterator[None]:
        """Update each bucket during back-propagation, as soon as its gradients are ready and reduced.

        Buckets are processed in order, the same on all ranks; those with a parameter without gradient, and all after
        them, at the end of the context. Call `step` after it to commit.

        Args:
            reduce: Function that reduces the gradients of a bucket, by index, over all ranks, in place.

        Raises:
            InputError: A clip, a scaler or `prepare` is set, which need all gradients before the first update.
        """
        check_apart(self._clip, self.state.scaler, self._prepare)
        members = [[m.parameter for m in bucket if m.parameter.requires_grad] for bucket in self._buckets]
        number_of = {parameter: number for number, bucket in enumerate(members) for parameter in bucket}
        waiting = [set(bucket) for bucket in members]

        def arrived(parameter: Tensor) -> None:
            waiting[number_of[parameter]].discard(parameter)  # type: ignore[index, arg-type]
            for number, missing in enumerate(waiting):
                if missing:
                    return
                apply(number)

        def apply(number: int) -> None:
            if not self._reduced[number]:
                gradients = [parameter.grad for parameter in members[number]]
                reduce(number, [gradient for gradient in gradients if gradient is not None])
                self.mark_reduced(number)
                self.update_bucket(number)

        hooks = [parameter.register_post_accumulate_grad_hook(arrived) for parameter in number_of]
        try:
            yield
            for number in range(len(self._buckets)):
                apply(number)
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self) -> None:
        """The first bucket is about to change: the journal of the step before ends."""
        self._recycle(self.committed_step - 1)

    def _recycle(self, step: int) -> None:
        """Give up what is kept of a step; the next copies take its memory."""
        self._old_snapshot = self._snapshots.pop(step, self._old_snapshot)
        self._old_seal = self._sealed.pop(step, self._old_seal)

    def _finish(self) -> None:
        optimizers = self.state.optimizers
        if not self.begun:
            if self.state.scaler is not None:
                for optimizer in optimizers:
                    self.state.scaler.unscale_(optimizer)  # type: ignore[attr-defined]
            if self._clip is not None:
                nn.utils.clip_grad_norm_(
                    [m.parameter for bucket in self._buckets for m in bucket], self._clip
                )
        for number, version in enumerate(self._versions):
            if version == self.committed_step:
                self.update_bucket(number)
        self._move_on()
        self._commit()

    def _move_on(self) -> None:
        """Let scaler, schedules and the script's functions follow the update, each once even if a later one raises."""
        acts: list[Callable[[], Any]] = [schedule.step for schedule in self.state.schedulers]
        if self.state.scaler is not None:
            acts.insert(0, self.state.scaler.update)  # type: ignore[attr-defined]
        acts.append(partial(self.announce, self.committed_step + 1))
        for act in acts[self._moved :]:
            act()
            self._moved += 1

    def _step(self, optimizer: Optimizer, members: Sequence[BucketParameter]) -> bool:
        """Let an optimizer update the parameters of a bucket; whether it did."""
        done: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: done.append(True))
        try:
            with _only(optimizer, members, whole=len(self._buckets) == 1) as some:
                if some and self.state.scaler is not None:
                    self.state.scaler.step(optimizer)  # type: ignore[attr-defined]
                elif some:
                    optimizer.step()
        finally:
            hook.remove()
        return bool(done)

    def _commit(self) -> None:
        step = self.committed_step + 1
        if self.consistency == "roll-forward":
            # Nobody can come back to the step before.
            self._recycle(step - 1)
        self._snapshots[step] = self._snapshot()
        self._reduced = [False] * len(self._buckets)
        self._moved = 0
        # Last, after all that it stands for.
        self.committed_step = step

    def _restore(self, buckets: Sequence[int]) -> None:
        try:
            for bucket in buckets:
                self._journals[bucket].restore()
        except BaseException:
            self.committed_step = _LOST
            raise

    def _set(self, step: int) -> None:
        """Go on from a step whose parameters are there again."""
        kept = self._snapshots[step]
        if step in self._sealed or step != self.committed_step:
            self.state.load_replicated_state(copy_into(self._sealed.get(step, kept["light"])))
        else:
            # What the script has set since the update belongs to the step, what the model has computed does not.
            self.state.load_buffers(copy_into(kept["light"]["buffers"]))
        self.state.load_own(copy_into(kept["own"]))
        self._clear(step)

    def _clear(self, step: int) -> None:
        self._versions = [step] * len(self._buckets)
        self._reduced = [False] * len(self._buckets)
        self.committed_step, self._moved = step, 0
        self._snapshots = {one: kept for one, kept in self._snapshots.items() if one == step}
        self._sealed = {one: kept for one, kept in self._sealed.items() if one == step}

    def _snapshot(self) -> Any:
        """Copy of all but parameters and their state in optimizers, in the memory of an old one."""
        into, self._old_snapshot = self._old_snapshot, None
        return copy_into({"light": self.state.light(), "own": self.state.own()}, into)


@contextmanager
def _only(optimizer: Optimizer, members: Sequence[BucketParameter], *, whole: bool) -> Iterator[bool]:
    """The optimizer with the parameters of a bucket alone; whether there are any."""
    if whole:
        yield True
        return
    own = {member.parameter for member in members if member.optimizer is optimizer}
    before = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter in own]
    try:
        yield bool(own)
    finally:
        for group, parameters in zip(optimizer.param_groups, before, strict=True):
            group["params"] = parameters


def _split(
    members: Sequence[BucketParameter], buckets: Sequence[Sequence[nn.Parameter]] | None
) -> list[list[BucketParameter]]:
    """Members of each bucket."""
    if buckets is None:
        return [list(members)]
    of = {member.parameter: member for member in members}
    given = [parameter for bucket in buckets for parameter in bucket]
    if len(given) != len(set(given)) or set(given) != of.keys():
        raise InputError(
            f"the buckets hold {len(given)} parameters, {len(set(given) & of.keys())} of the {len(of)} that the "
            "optimizers have; expected each of them once"
        )
    return [[of[parameter] for parameter in bucket] for bucket in buckets]


def check_apart(clip: float | None, scaler: object, prepare: object) -> None:
    """Raise if an option needs all gradients before the first bucket is updated."""
    wanted = {
        "clip": clip is not None and "the norm of all gradients",
        "scaler": scaler is not None and "the scaler's look at all gradients",
        "prepare": prepare is not None and "what no replica has",
    }
    for name, what in wanted.items():
        if what:
            raise InputError(
                f"{what} is known only when the last bucket is reduced, and buckets before it are updated by then; "
                f"give buckets=None, so that updates follow the reduction of all, or leave {name} away"
            )


def _chosen(state: TrainingState, buckets: Sequence[Sequence[BucketParameter]]) -> Consistency:
    """Resolve "auto": averages of an optimizer that has none yet are taken as two for each parameter."""
    if len(buckets) == 1:
        return "roll-forward"
    members = [member for bucket in buckets for member in bucket]
    needed = 3 * sum(member.parameter.nbytes for member in members)
    device = members[0].parameter.device if members else torch.device("cpu")
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if needed * _SHARE <= free:
        return "ping-pong"
    try:
        for optimizer in state.optimizers:
            check_undo(optimizer)
    except InputError:
        return "roll-forward"
    return "undo"
