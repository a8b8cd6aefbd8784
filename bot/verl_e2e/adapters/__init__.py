"""The only rooms for network, subprocess, files and databases; no adapter imports another."""
