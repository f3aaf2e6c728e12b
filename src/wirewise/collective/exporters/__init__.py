"""Programs in the formats of other runtimes and simulators: MSCCL, MSCCL++, NCCL, Chakra."""

__all__: list[str] = []
