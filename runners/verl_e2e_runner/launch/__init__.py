"""How the runner starts each consumer: what all have in common, and one module each."""
