"""Every check before a GPU hour is spent."""
