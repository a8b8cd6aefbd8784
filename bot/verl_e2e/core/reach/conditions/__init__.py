"""What must hold for a run to enter changed code: the tests around a statement, and those around its callers."""
