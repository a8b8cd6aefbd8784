"""Hand-made stand-ins with state, for the ports of `verl_e2e.ports`."""
