"""Errors shown to the user; each message is one sentence: what is wrong and what to do."""


class SpecbenchError(Exception):
    """Base of all errors that the command line prints as one line, without a traceback."""


class UsageError(SpecbenchError):
    """The request is wrong (an unknown name, a value out of range): exit code 2."""


class RunError(SpecbenchError):
    """The request was valid but its execution failed: exit code 1."""


class EngineError(RunError):
    """The engine does not work with these settings, for any input."""


def require(condition: bool, message: str) -> None:
    """Raise ``UsageError`` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def require_at_least(low: int, option: str, value: int | None) -> None:
    """Raise ``UsageError`` if a given number is too low."""
    require(value is None or value >= low, f"{option} must be {low} or more, not {value}")
