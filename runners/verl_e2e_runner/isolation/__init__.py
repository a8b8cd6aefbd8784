"""Keeping code under test apart from the recorder: what this host can do, and the cage of one run."""
