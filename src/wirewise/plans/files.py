"""Plan files, and the families of plans that they hold."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import PlanError
from wirewise.files import atomic_file, read_file
from wirewise.plans.base import Plan, explain_error
from wirewise.plans.bitwidth import BitWidthPlan
from wirewise.plans.cache import CachePlan
from wirewise.plans.collective import CollectivePlan
from wirewise.plans.deployment import DeploymentPlan
from wirewise.plans.fusion import FusionPlan
from wirewise.plans.jobs import JobPlan
from wirewise.plans.parallel import ParallelPlan
from wirewise.plans.placement import PlacementPlan
from wirewise.plans.recovery import RecoveryPlan
from wirewise.plans.reshard import ReshardPlan
from wirewise.plans.stages import StagePlan

__all__ = ["PLANS", "load", "loads", "save"]

PLANS: dict[str, type[Plan]] = {
    "bitwidth": BitWidthPlan,
    "cache": CachePlan,
    "collective": CollectivePlan,
    "deployment": DeploymentPlan,
    "fusion": FusionPlan,
    "jobs": JobPlan,
    "parallel": ParallelPlan,
    "placement": PlacementPlan,
    "recovery": RecoveryPlan,
    "stages": StagePlan,
    "reshard": ReshardPlan,
}
"""Plan families by tag."""


def loads(text: str | bytes) -> Plan:
    """Read a plan of any family, by its tag.

    Raises:
        PlanError: Raised by `Plan.from_json` and `Plan.check_itself`, or the family is unknown.
    """
    try:
        head: Any = decode_json(text)
    except msgspec.DecodeError as error:
        raise PlanError(explain_error(error, "")) from error
    family = head.get("family") if isinstance(head, dict) else None
    if not isinstance(family, str) or family not in PLANS:
        raise PlanError(
            f"unknown plan family {family!r} - at `$.family`; expected one of: {', '.join(sorted(PLANS))}"
        )
    plan = PLANS[family].from_json(text)
    plan.check_itself()
    return plan


def load(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file.

    Raises:
        InputError: The file cannot be read.
        PlanError: Raised by `loads`; the message names the file too.
    """
    return read_file(path, "plan file", loads)


def save(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan file atomically (temporary file, fsync, rename).

    Raises:
        InputError: The folder is missing, not writable or full; an older file at `path` is left intact.
    """
    with atomic_file(path) as file:
        file.write(plan.to_json().encode())
