"""TAG: deployment of a model on heterogeneous hosts."""
