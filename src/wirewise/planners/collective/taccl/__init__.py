"""TACCL: algorithms for collectives from a sketch of what they should look like."""
