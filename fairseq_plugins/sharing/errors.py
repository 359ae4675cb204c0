"""What cannot be shared."""


class SharingError(ValueError):
    """A pattern or a column plan that does not fit; the message has the numbers."""
