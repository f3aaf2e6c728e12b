"""A dialogue model of several knowledge sources, its data and its metrics."""
