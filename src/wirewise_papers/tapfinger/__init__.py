"""TapFinger: placement of jobs on edge clusters, and their resources."""
