"""Reach: which functions of the code under test another program can run, followed from its own imports."""
