"""Published systems as experiments on the library, each compared with baselines."""
