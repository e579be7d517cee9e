"""A wrong clock: shifts the time of day of a process and its children by seconds that may change.

A library of a few lines of C, compiled on this machine, intercepts the system's clock. Monotonic clocks are unchanged,
as when a machine's time of day is set.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("CDC_LAKE_WRONG_CLOCK");
    int fd = file == NULL ? -1 : open(file, O_RDONLY);
    if (fd < 0) return;
    void *seen = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (seen != MAP_FAILED) shift = seen;
    close(fd);
}

int clock_gettime(clockid_t which, struct timespec *out) {
    int failed = (int) syscall(SYS_clock_gettime, which, out);
    if (!failed && shift != NULL && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) out->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void) zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
"""


def can_be_made() -> bool:
    """Whether the machine has a compiler, and a loader that takes what it makes before a program's own."""
    return sys.platform == "linux" and shutil.which("cc") is not None


class WrongClock:
    """A clock for processes that are started with `environment`; right until it is shifted."""

    def __init__(self, folder: Path) -> None:
        """Make the library in a folder. Raises RuntimeError with the compiler's words."""
        folder.mkdir(parents=True, exist_ok=True)
        self._shift, library = folder / "shift", folder / "wrong_clock.so"
        words = ["cc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(library)]
        made = subprocess.run(words, input=_SOURCE, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(made.stderr)
        self.environment = {"LD_PRELOAD": str(library), "CDC_LAKE_WRONG_CLOCK": str(self._shift)}
        self.shift(0)

    def shift(self, seconds: int) -> None:
        """From now on the time of day is so many seconds away from what it is."""
        if self._shift.exists():
            with self._shift.open("r+b") as file:
                file.write(struct.pack("=q", seconds))
        else:
            self._shift.write_bytes(struct.pack("=q", seconds))
