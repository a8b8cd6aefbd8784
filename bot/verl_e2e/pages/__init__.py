"""HTML pages: pure functions of frozen values, by templates that escape every value."""
