"""Carry out placed tasks: flows over TCP in chunks that go by priority."""

from wirewise.runtime.flows.engine import FlowEngine
from wirewise.runtime.flows.execution import ExecutionTimes, TaskExecution, execute
from wirewise.runtime.flows.meeting import Connections
from wirewise.runtime.flows.orders import CHUNK_BYTES, ORDERS, Grants, TokenBucket

__all__ = [
    "CHUNK_BYTES",
    "ORDERS",
    "Connections",
    "ExecutionTimes",
    "FlowEngine",
    "Grants",
    "TaskExecution",
    "TokenBucket",
    "execute",
]
