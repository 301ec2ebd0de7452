"""Errors shown to the user; each message is one sentence: what is wrong and what to do."""

LONGEST = 200  # characters of a reason


class SpecbenchError(Exception):
    """Base of all errors that the command line prints as one line, without a traceback."""


class UsageError(SpecbenchError):
    """The request is wrong (an unknown name, a value out of range): exit code 2."""


class RunError(SpecbenchError):
    """The request was valid but its execution failed: exit code 1."""


class IncompleteError(SpecbenchError):
    """Nothing is wrong, but something is missing: exit code 3."""


class EngineError(RunError):
    """The engine does not work with these settings, for any input."""


class CaptureError(Exception):
    """A function cannot be captured or compiled; the engine decides what follows from it."""


def require(condition: bool, message: str) -> None:
    """Raise ``UsageError`` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut if it is long."""
    lines = str(error).strip().splitlines()
    first = lines[0].rstrip(".:") if lines else type(error).__name__
    # Transformers lists all model types that it supports, hundreds of them.
    return first if len(first) <= LONGEST else f"{first[:LONGEST]}..."


def cause(error: BaseException) -> str:
    """Return the reason of a configuration error, without the name of the failed check."""
    return first_line(error.__cause__ or error)
