"""A console log read once, in bounded memory, into facts."""
