"""One module for each test harness that the runner can drive; verl's wrapper is the first."""
