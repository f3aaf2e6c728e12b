"""AdaQP (Wan et al., MLSys 2023): full-graph training with adaptively quantized messages."""
