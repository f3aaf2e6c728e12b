"""SWIFT: recovery from the loss of ranks."""
