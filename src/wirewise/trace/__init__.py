"""Traces of all ranks and the dataflow graph that they give."""
