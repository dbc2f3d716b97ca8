"""Opens files that the user names: regular ones only, for a pipe without a writer never begins and a device never ends."""

from __future__ import annotations

import os
import stat
from typing import IO

from graphflops.errors import FileError, shown

# Opening a pipe that nobody writes to would wait; regular files know no difference.
_AT_ONCE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """The file, to be read. Raises OSError where it cannot be opened, FileError for a folder, a pipe or a device."""
    handle = os.open(path, _AT_ONCE)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    what = "a directory" if stat.S_ISDIR(mode) else "a device or a pipe"
    raise FileError(f"{shown(os.fspath(path))}: is {what}, not a file")
