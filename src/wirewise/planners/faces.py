"""Common interface of planners: `planner(job, links, *, seed, time_budget_s, **knobs) -> Plan`.

Each family has its own problem type, which holds costs and links, and defines the jobs that it is built from. This
module only unifies how planners are called.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans.base import Plan

__all__ = ["Planner", "Problems", "expect_links", "face", "problems_of"]


class Planner(Protocol):
    """Function from a job and the links between its ranks to a plan."""

    def __call__(
        self, job: Any, links: Any = None, *, seed: int = 0, time_budget_s: float | None = None, **knobs: Any
    ) -> Plan:
        """Make a plan.

        Args:
            job: A description of the job, of a grain that the planner decides on; or the family's problem, which holds
                the rest.
            links: Links between the ranks; None: the job or the problem says what bytes travel over.
            seed: Seed of what is drawn; recorded in the plan.
            time_budget_s: Seconds for the search. Defaults to the planner's own.
            knobs: Conditions of the problem, such as `codec`, and the planner's own.

        Raises:
            InputError: A job or links of another kind; the message says which are expected.
            PlanError: No plan, or a time budget for a planner without a search.
        """
        ...


class Problems(NamedTuple):
    """Problem type of the planners of a family, or of one job type in it."""

    about: str
    """Description of the input in error messages, such as "a recorded run"."""
    kind: type
    """Type of a complete problem, which planners accept without job and links."""
    of: Mapping[type, Callable[..., Any]] = {}
    """Functions `(job, links, *, conditions)` to the problem, by kind of job."""

    def takes(self, job: Any) -> bool:
        """Whether a job is a problem itself, or of a type that problems are built from."""
        return isinstance(job, (self.kind, *self.of))

    def problem(self, name: str, job: Any, links: Any, conditions: Mapping[str, Any]) -> Any:
        """Build the problem of a job on its links; a problem passed alone is returned unchanged.

        Raises:
            InputError: The job is of no type that the planner accepts; the message has its `name`.
        """
        if isinstance(job, self.kind) and links is None and not conditions:
            return job
        for grain, make in self.of.items():
            if isinstance(job, grain):
                return make(job, links, **conditions)
        known = f"{self.kind.__name__} alone" + "".join(
            f", or {grain.__name__} and its links" for grain in self.of if grain is not self.kind
        )
        beside = [*(["links"] if links is not None else []), *conditions]
        got = "None" if job is None else type(job).__name__
        raise InputError(
            f"planner {name!r} is for {self.about} and takes {known}; got {got}"
            f"{' beside ' * bool(beside)}{', '.join(beside)}"
        )

    @property
    def conditions(self) -> dict[str, inspect.Parameter]:
        """Parameters of a problem other than job and links."""
        return {
            name: parameter
            for make in self.of.values()
            for name, parameter in inspect.signature(make).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }


def face(make: Callable[..., Plan], name: str, problems: Problems, *, budget: str = "") -> Planner:
    """Wrap `make(problem, *, seed, **knobs)` as a planner with the common interface.

    Args:
        make: Function to call.
        name: Name of the planner.
        problems: Type of the first argument of `make`, and how it is built.
        budget: Name of the option for the search time in seconds; empty if there is none.
    """
    conditions = problems.conditions

    def plan(
        job: Any, links: Any = None, *, seed: int = 0, time_budget_s: float | None = None, **knobs: Any
    ) -> Plan:
        if time_budget_s is not None and not budget:
            raise PlanError(f"planner {name!r} has no search that time could end; leave time_budget_s out")
        limit = {budget: time_budget_s} if time_budget_s is not None else {}
        given = {condition: knobs.pop(condition) for condition in conditions if condition in knobs}
        return make(problems.problem(name, job, links, given), seed=seed, **limit, **knobs)

    own = {
        knob: parameter
        for knob, parameter in inspect.signature(make).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
        and knob not in ("seed", budget, *getattr(make, "keywords", ()))
    }
    common = [one for one in inspect.signature(plan).parameters.values() if one.kind is not one.VAR_KEYWORD]
    parameters = sorted((*common, *(conditions | own).values()), key=lambda one: one.kind)
    # What can be said to it, for `help` and for commands.
    plan.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    plan.__name__ = plan.__qualname__ = name
    plan.__doc__ = _documented(make, problems, parameters, budget)
    plan.problems = problems  # type: ignore[attr-defined]
    return plan


def _documented(
    make: Callable[..., Plan], problems: Problems, parameters: list[inspect.Parameter], budget: str
) -> str:
    """Docstring of a planner: the text of `make`, and each parameter of the planner and no other."""
    text = inspect.getdoc(getattr(make, "func", make)) or ""
    head, described, tail = _sections(text)
    for of in problems.of.values():
        described = {**_sections(inspect.getdoc(of) or "")[1], **described}
    grains = [one.__name__ for one in problems.of if one is not problems.kind]
    described |= {
        "job": f"{problems.about[:1].upper()}{problems.about[1:]}: {problems.kind.__name__}"
        + "".join(f", or {grain} with its links" for grain in grains)
        + ".",
        "links": "Links between the ranks. Defaults to those that the job holds.",
        "seed": described.get("seed", "Recorded in the plan."),
        "time_budget_s": described.get(budget, "Seconds for the search. Defaults to the planner's own.")
        if budget
        else "None: there is no search that time could end.",
    }
    lines = [f"    {one.name}: {described.get(one.name, '')}".rstrip() for one in parameters]
    return "\n".join([head, "", "Args:", *lines, *([""] if tail else []), tail]).rstrip()


def _sections(text: str) -> tuple[str, dict[str, str], str]:
    """Split a docstring into the text before its arguments, the arguments by name, and the text behind them."""
    head, _, rest = text.partition("\nArgs:\n")
    if not rest:
        found = re.search(r"^(?:Returns|Raises|Yields):$", text, re.MULTILINE)
        return (text[: found.start()].rstrip(), {}, text[found.start() :]) if found else (text, {}, "")
    body, _, tail = rest.partition("\n\n")
    described = {
        match[1]: match[2].rstrip()
        for match in re.finditer(r"^    (\w+): (.*(?:\n        .*)*)", body, re.MULTILINE)
    }
    return head.rstrip(), described, tail


def problems_of(planner: Planner) -> Problems | None:
    """Problem type of a planner. None for a plain function, whose own errors apply."""
    return getattr(planner, "problems", None)


def expect_links(links: Any) -> Links:
    """Return the links, if they are a link table.

    Raises:
        InputError: The value is no link table; the message names its type.
    """
    if not isinstance(links, Links):
        got = "none" if links is None else f"a {type(links).__name__}"
        raise InputError(f"got {got} as the links of the job; expected Links, such as Links.of(topology)")
    return links
