"""PipeDream-2BW (Narayanan et al., ICML 2021): pipelines without flushes."""
