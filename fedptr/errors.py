"""Errors for people to read: what is wrong, where, and what to do, in one sentence."""


class UserError(Exception):
    """Something the user can correct. The command line prints it as one line and exits with code 2."""


class ReplyError(Exception):
    """What a client sent cannot be used."""


class ClientError(RuntimeError):
    """A client's work failed; the message names the method, the round and the client."""
