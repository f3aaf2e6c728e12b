"""SALIENT++ (Kaler et al., MLSys 2023): mini-batch training with cached remote features and a pipeline."""
