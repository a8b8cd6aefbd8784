"""The focused Bridge tests, before any GPU hour."""
