"""SEA-ER: rehearsal of old nodes as a graph grows."""
