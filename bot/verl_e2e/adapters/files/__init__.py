"""Files on this machine: run folders, logs, kept baselines, caches."""
