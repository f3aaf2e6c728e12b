"""Frozen records of decisions, one file per family; each is checked, simulated, executed and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirewise.lazy import lazy_names

if TYPE_CHECKING:
    from wirewise.plans.base import Plan, TopologyLike
    from wirewise.plans.bitwidth import BITS, BitWidthPlan, ChannelBits, row_bytes
    from wirewise.plans.cache import CachePlan, MachineCache
    from wirewise.plans.collective import Candidate, Certificate, CollectivePlan
    from wirewise.plans.deployment import DeployedDevice, DeployedGroup, DeploymentPlan, RowMove
    from wirewise.plans.files import PLANS, load, loads, save
    from wirewise.plans.fusion import DECODES, PRECISIONS, SCHEMES, Bucket, FusionPlan
    from wirewise.plans.jobs import JobAllotment, JobPlan
    from wirewise.plans.parallel import (
        BlockChoice,
        DimPlacement,
        Move,
        MoveStep,
        ParallelPlan,
        parse_placements,
    )
    from wirewise.plans.placement import PlacedTask, PlacementPlan
    from wirewise.plans.recovery import (
        FrontPoint,
        MessageLog,
        PricedPolicy,
        RecoveryPhases,
        RecoveryPlan,
        StageRecovery,
    )
    from wirewise.plans.reshard import BusiestHosts, MulticastTree, ReshardPlan, UnitTask
    from wirewise.plans.sharding import LaidOutTensor, Sharding, TensorSlice, parse_sharding
    from wirewise.plans.stages import Stage, StagePlan, ValueSplit
    from wirewise.plans.timetables import StageAction

__all__ = [
    "BITS",
    "DECODES",
    "PLANS",
    "PRECISIONS",
    "SCHEMES",
    "BitWidthPlan",
    "BlockChoice",
    "Bucket",
    "BusiestHosts",
    "CachePlan",
    "Candidate",
    "Certificate",
    "ChannelBits",
    "CollectivePlan",
    "DeployedDevice",
    "DeployedGroup",
    "DeploymentPlan",
    "DimPlacement",
    "FrontPoint",
    "FusionPlan",
    "JobAllotment",
    "JobPlan",
    "LaidOutTensor",
    "MachineCache",
    "MessageLog",
    "Move",
    "MoveStep",
    "MulticastTree",
    "ParallelPlan",
    "PlacedTask",
    "PlacementPlan",
    "Plan",
    "PricedPolicy",
    "RecoveryPhases",
    "RecoveryPlan",
    "ReshardPlan",
    "RowMove",
    "Sharding",
    "Stage",
    "StageAction",
    "StagePlan",
    "StageRecovery",
    "TensorSlice",
    "TopologyLike",
    "UnitTask",
    "ValueSplit",
    "load",
    "loads",
    "parse_placements",
    "parse_sharding",
    "row_bytes",
    "save",
]

# A rank that carries one plan out needs one family, and no program of collectives.
__getattr__ = lazy_names(
    __name__,
    {
        "base": (
            "Plan",
            "TopologyLike",
        ),
        "bitwidth": (
            "BITS",
            "BitWidthPlan",
            "ChannelBits",
            "row_bytes",
        ),
        "cache": (
            "CachePlan",
            "MachineCache",
        ),
        "collective": (
            "Candidate",
            "Certificate",
            "CollectivePlan",
        ),
        "deployment": (
            "DeployedDevice",
            "DeployedGroup",
            "DeploymentPlan",
            "RowMove",
        ),
        "files": (
            "PLANS",
            "load",
            "loads",
            "save",
        ),
        "fusion": (
            "DECODES",
            "PRECISIONS",
            "SCHEMES",
            "Bucket",
            "FusionPlan",
        ),
        "jobs": (
            "JobAllotment",
            "JobPlan",
        ),
        "parallel": (
            "BlockChoice",
            "DimPlacement",
            "Move",
            "MoveStep",
            "ParallelPlan",
            "parse_placements",
        ),
        "placement": (
            "PlacedTask",
            "PlacementPlan",
        ),
        "recovery": (
            "FrontPoint",
            "MessageLog",
            "PricedPolicy",
            "RecoveryPhases",
            "RecoveryPlan",
            "StageRecovery",
        ),
        "reshard": (
            "BusiestHosts",
            "MulticastTree",
            "ReshardPlan",
            "UnitTask",
        ),
        "sharding": (
            "LaidOutTensor",
            "Sharding",
            "TensorSlice",
            "parse_sharding",
        ),
        "stages": (
            "Stage",
            "StagePlan",
            "ValueSplit",
        ),
        "timetables": ("StageAction",),
    },
)
