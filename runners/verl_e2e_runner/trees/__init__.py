"""The trees that a run imports from, and declared patches of them."""
