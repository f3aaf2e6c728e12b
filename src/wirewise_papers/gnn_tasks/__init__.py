"""Task placement of distributed GNN training (Luo, Bao, Wu)."""
