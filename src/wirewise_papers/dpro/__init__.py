"""Replay of a recorded job, and plans of its gradient buckets (dPRO; Hu et al., MLSys 2022)."""
