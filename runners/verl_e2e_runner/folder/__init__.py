"""The run folder: written so that a crash at any moment leaves one that can be judged."""
