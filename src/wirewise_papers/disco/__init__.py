"""DisCo: a step with fused operators and buckets that were searched together, compared with DistributedDataParallel."""
