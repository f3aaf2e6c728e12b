"""Functions that turn a problem and measured costs into a plan; none of them talks to other ranks."""
