"""Trials of variants on running ranks: starting ranks, being one, and reading what they measured."""
