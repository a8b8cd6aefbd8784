"""Supervision of the wrapper while it runs."""
