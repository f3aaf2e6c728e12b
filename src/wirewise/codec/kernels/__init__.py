"""The quantizer in three implementations that write identical bytes: torch operations, numba, Triton."""

__all__: list[str] = []
