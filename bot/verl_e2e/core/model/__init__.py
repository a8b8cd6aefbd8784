"""The shared types: levels, jobs, records, evidence, results. Nothing here judges."""
