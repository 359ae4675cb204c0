"""The one way to tell a user what went wrong."""


class UserError(SystemExit):
    """A mistake that the user can mend: what is wrong, where, and what to do, in one line.

    Python prints a ``SystemExit`` message on standard error, without a traceback, and exits
    with 1; so this works inside fairseq's own commands too.
    """
