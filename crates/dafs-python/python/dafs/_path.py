"""Paths as fsspec knows them, and as the server sees them."""


class DirectoryPath(str):
    """A path that was given with a slash or a dot behind it, which asks for a directory (POSIX 4.13).

    fsspec wants paths without such slashes; this one is equal to what it would be without. A path that is
    made of it, such as one below it, is a plain text again.
    """


def asked(path):
    """A path as it was given, for the server to see."""
    return f"{path}/" if isinstance(path, DirectoryPath) else path


def target(path):
    """The place that things are copied to. fsspec knows a directory by the slash behind it alone."""
    return path + "/" if isinstance(path, str) and path.endswith("/.") else path
