"""A stateful GitHub over real HTTP, for tests: REST, webhooks and git, with faults on demand."""
