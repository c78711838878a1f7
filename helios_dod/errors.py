"""The base of every error that a person can act on: one line, without a traceback."""


class UserError(ValueError):
    """Names what is wrong (file, field, option), its limit and its value."""
