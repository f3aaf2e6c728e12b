"""Carry out placed tasks: flows over TCP in chunks that go by priority. Needs no torch."""

from wirewise.runtime.flows.engine import FlowEngine
from wirewise.runtime.flows.execution import TaskExecution, Times, execute
from wirewise.runtime.flows.grants import CHUNK_BYTES, ORDERS, Grants, TokenBucket
from wirewise.runtime.flows.meeting import Connections, meet

__all__ = [
    "CHUNK_BYTES",
    "ORDERS",
    "Connections",
    "FlowEngine",
    "Grants",
    "TaskExecution",
    "Times",
    "TokenBucket",
    "execute",
    "meet",
]
