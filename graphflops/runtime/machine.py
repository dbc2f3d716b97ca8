"""Memory of this machine, and limits that a process sets for itself before it runs a program."""

import os
import sys
from contextlib import suppress
from pathlib import Path

_FILES = 256  # files open at a time
# Bytes of one file that a run on a GPU may write: Triton and CUDA keep compiled kernels in files.
KERNELS = 2**30


def machine_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes() -> int | None:
    """Memory that a program can use, within the limits of a container and of this process; None if unknown."""
    found = [_field("/proc/meminfo", "MemAvailable:")]
    with suppress(OSError):
        files = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
        most, now = (file.read_text().strip() for file in files)
        if most.isdecimal() and now.isdecimal():
            found.append(max(0, int(most) - int(now)))
    with suppress(ImportError):
        import resource

        limit, held = resource.getrlimit(resource.RLIMIT_DATA)[0], _field("/proc/self/status", "VmData:")
        if held is not None and limit != resource.RLIM_INFINITY:
            found.append(max(0, limit - held))
    return min((size for size in found if size is not None), default=None)


def most_held_bytes() -> int:
    """Peak memory of this process in bytes, 0 if unknown. On Linux, `ru_maxrss` would start with the parent's peak."""
    if (held := _field("/proc/self/status", "VmHWM:")) is not None:
        return held
    with suppress(ImportError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return 0


def limit_process(seconds: float, memory: int | None, writes: int) -> None:
    """Limit this process's CPU time, memory beyond what it has now, and files. No effect on Windows.

    memory: bytes; None: all that is free. writes: largest file that it may write, in bytes; 0: no file at all.
    """
    try:
        import resource
    except ImportError:
        return
    cores = os.cpu_count() or 1
    _lower(resource.RLIMIT_CPU, int(seconds * cores) + 1)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, _FILES)
    _lower(resource.RLIMIT_FSIZE, writes)
    allowed = memory if memory is not None else free_bytes()
    held = _field("/proc/self/status", "VmData:")
    # Reserved but unusable memory, such as CUDA's, is not limited.
    if allowed is not None and held is not None:
        _lower(resource.RLIMIT_DATA, held + allowed)
    sys.dont_write_bytecode = True


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def _lower(kind: int, wanted: int) -> None:
    import resource

    _, most = resource.getrlimit(kind)
    limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(kind, (limit, limit))


def _field(path: str, name: str) -> int | None:
    """A field of a Linux file such as /proc/meminfo, which has numbers of kilobytes by name, in bytes."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
