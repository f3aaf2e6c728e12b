"""Trials of variants on running ranks: launch, the rank's side, and collection of results."""
