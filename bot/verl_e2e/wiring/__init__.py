"""Names the concrete classes: the one place that knows which adapter serves which port.

A module for each kind of work, so that a command loads the adapters of its own work alone.
"""
