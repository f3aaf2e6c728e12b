"""Carry out placed tasks: flows over TCP in chunks that go by priority. Needs no torch."""

from wirewise.runtime.flows.carrier import Carrier
from wirewise.runtime.flows.execution import Execution, Times, execute
from wirewise.runtime.flows.grants import CHUNK_BYTES, ORDERS, Bucket, Grants
from wirewise.runtime.flows.meeting import Peers, meet

__all__ = [
    "CHUNK_BYTES",
    "ORDERS",
    "Bucket",
    "Carrier",
    "Execution",
    "Grants",
    "Peers",
    "Times",
    "execute",
    "meet",
]
