"""Exchange between the library in a job and its recordings and trials: waits, hooks, facts, changed arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

__all__ = [
    "CHANGES",
    "FACTS",
    "add_wait_observer",
    "argument",
    "blocked",
    "is_observer",
    "note_fact",
    "observer",
    "remove_wait_observer",
]

T = TypeVar("T")

FACTS: dict[str, str] = {}
"""Facts about this process's job, such as the mode of its graph, by name; recordings keep them."""
CHANGES: dict[str, Callable[[Any], Any]] = {}
"""Arguments of the library's calls that a trial changes: a function of the script's value, by name."""

WaitObserver = Callable[[str], Callable[[], None]]
"""Called with the name of a wait as a thread begins it; what it returns is called as the wait ends."""

_wait_observers: list[WaitObserver] = []


def observer(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a hook that reads and changes nothing of what it is called with."""
    # Bound methods take no attributes; a partial does, and adds no frame to each call.
    marked = partial(hook)
    marked.wirewise_observer = True  # type: ignore[attr-defined]
    return marked


def is_observer(hook: object) -> bool:
    """Whether a hook was marked by `observer`."""
    return getattr(hook, "wirewise_observer", False) is True


def add_wait_observer(begin: WaitObserver) -> None:
    """Observe the waits of this process for messages that a thread of the library receives."""
    _wait_observers.append(begin)


def remove_wait_observer(begin: WaitObserver) -> None:
    """Stop observing."""
    _wait_observers.remove(begin)


@contextmanager
def blocked(name: str) -> Iterator[None]:
    """Tell observers that this thread waits.

    Args:
        name: Name of the awaited operation, such as "recv".
    """
    ends = [begin(name) for begin in _wait_observers]
    try:
        yield
    finally:
        for end in ends:
            end()


def argument(name: str, value: T) -> T:
    """Value of an argument of the script's call: its own, or that of a trial."""
    return CHANGES[name](value) if name in CHANGES else value


def note_fact(name: str, value: str) -> None:
    """Record a fact about the job; different values of one fact are joined, as of two graphs in two modes."""
    known = FACTS.get(name, "").split(", ") if name in FACTS else []
    FACTS[name] = ", ".join(dict.fromkeys((*known, value)))
