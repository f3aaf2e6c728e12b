"""Cupcake (Wang et al., MLSys 2023): which gradients to fuse before compressing them."""
