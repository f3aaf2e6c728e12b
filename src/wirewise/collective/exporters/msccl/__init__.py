"""MSCCL: programs lowered to thread blocks, written as XML, checked, and executed on the CPU."""

from wirewise.collective.exporters.msccl.interpreter import Memory, deadlocked_steps, execute
from wirewise.collective.exporters.msccl.layout import Layout
from wirewise.collective.exporters.msccl.lowering import lower
from wirewise.collective.exporters.msccl.model import (
    PROTOCOLS,
    Algorithm,
    Dialect,
    Gpu,
    Place,
    Protocol,
    Step,
    ThreadBlock,
)
from wirewise.collective.exporters.msccl.validate import (
    RULES,
    Violation,
    check,
    largest_call_bytes,
    result_unknown,
    violations,
)
from wirewise.collective.exporters.msccl.xml import dumps, loads

__all__ = [
    "PROTOCOLS",
    "RULES",
    "Algorithm",
    "Dialect",
    "Gpu",
    "Layout",
    "Memory",
    "Place",
    "Protocol",
    "Step",
    "ThreadBlock",
    "Violation",
    "check",
    "deadlocked_steps",
    "dumps",
    "execute",
    "largest_call_bytes",
    "loads",
    "lower",
    "result_unknown",
    "violations",
]
