"""The only packages that use the network, subprocesses, files and databases; no adapter imports another."""
