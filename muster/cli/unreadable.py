"""A file that somebody named and that cannot be read: the same words, whichever flag names it."""

from muster.cli.exits import Problem, usage


def unreadable(where: str, error: Exception, *, todo: str | None = None) -> Problem:
    """Args: where, the flag and the file."""
    return usage(f"{where} cannot be read: {_why(error)}", todo=todo)


def _why(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such file"
        case IsADirectoryError():
            return "it is a folder"
        case PermissionError():
            return "you may not read it"
        case UnicodeDecodeError():
            return f"it is no text in UTF-8, from byte {error.start} on"
        case OSError():
            return error.strerror or str(error)
        case _:
            return str(error)
