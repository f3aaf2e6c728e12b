"""Breakdown of the step time by stalls: runs of an unmodified script that differ in one thing each.

The runs and their differences are those of Stash (ICDCS 2023; arXiv 2208.14344). A shim in every rank counts
optimizer steps and serves other data (`shim`); `wirewise.trials.stalls` starts the runs, and
`wirewise.cost.stalls` takes the differences.
"""
