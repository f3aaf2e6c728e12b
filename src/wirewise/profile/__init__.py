"""Recording and measuring training jobs: traces of unmodified scripts, and where their time stalls."""
