"""Ranks for tests: threads (milliseconds, one process) and processes (a second, real deaths)."""
