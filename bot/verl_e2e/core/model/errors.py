"""What a person can correct, as against a fault of ours and a service that does not answer."""


class UserError(Exception):
    """Something that the reader of the text can correct; the text says what is wrong and what to do about it."""
