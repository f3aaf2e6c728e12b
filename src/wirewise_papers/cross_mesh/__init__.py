"""Cross-mesh resharding (Zhuang et al., MLSys 2023)."""
