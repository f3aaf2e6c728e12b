"""Execution of placed tasks: flows over TCP in chunks, by priority."""

from wirewise.runtime.flows.engine import FlowEngine
from wirewise.runtime.flows.execution import ExecutionTimes, TaskExecution, execute
from wirewise.runtime.flows.meeting import Connections
from wirewise.runtime.flows.orders import CHUNK_BYTES, ORDERS, GrantLedger, TokenBucket

__all__ = [
    "CHUNK_BYTES",
    "ORDERS",
    "Connections",
    "ExecutionTimes",
    "FlowEngine",
    "GrantLedger",
    "TaskExecution",
    "TokenBucket",
    "execute",
]
