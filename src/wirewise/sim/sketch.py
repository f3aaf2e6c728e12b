"""A dataflow graph that can be edited."""

from wirewise.trace.sketch import Node, Sketch

__all__ = ["Node", "Sketch"]
