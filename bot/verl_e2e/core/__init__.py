"""The judgements: plain functions of frozen values, no I/O, clock, environment or logging."""
