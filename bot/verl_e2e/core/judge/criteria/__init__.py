"""The pass criteria: each judged by one function of a case."""
