"""Rehearsals on a CPU: the table of cells, and the programs that run them in a Python with PyTorch."""
