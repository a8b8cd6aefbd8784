"""The metrics of a process, in Prometheus' text format; docs/metrics.md explains each one.

    counted      what this process counts as it happens
    collectors   what other parts count, and what the database says, read at each request

A label has few values: each is a member of an enumeration or of a list here, or is replaced by `other`.
"""

from verl_e2e.adapters.metrics.counted import ApiCollector, CountsCollector, Metrics, SharedCollector

__all__ = ["ApiCollector", "CountsCollector", "Metrics", "SharedCollector"]
