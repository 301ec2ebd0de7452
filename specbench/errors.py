"""The errors a user may cause; each message is one sentence: what is wrong and what to do."""


class SpecbenchError(Exception):
    """Base of every error that the command line shows as one line, without a traceback."""


class UsageError(SpecbenchError):
    """The request is wrong (an unknown name, a value out of range): exit code 2."""


class RunError(SpecbenchError):
    """The request was right but carrying it out failed: exit code 1."""


class EngineError(RunError):
    """The engine cannot work as asked, whatever it is given to decode."""


def require(condition: bool, message: str) -> None:
    """Raise ``UsageError`` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def require_at_least(low: int, option: str, value: int | None) -> None:
    """Raise ``UsageError`` where a number is given and too low."""
    require(value is None or value >= low, f"{option} must be {low} or more, not {value}")
