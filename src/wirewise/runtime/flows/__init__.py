"""Carry out placed tasks: flows over TCP in chunks that go by priority. Needs no torch."""

from wirewise.runtime.flows.carrier import CHUNK_BYTES, ORDERS, Carrier
from wirewise.runtime.flows.execution import Execution, Times, execute
from wirewise.runtime.flows.meeting import Peers, meet

__all__ = ["CHUNK_BYTES", "ORDERS", "Carrier", "Execution", "Peers", "Times", "execute", "meet"]
