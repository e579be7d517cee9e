"""Archives that tests unpack, with every Python from 3.11.0 on: `extractall` knows its filter only since 3.11.4."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Everything in an archive of ours into `folder`; where Python can, nothing outside of it."""
    archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
    archive.extractall(folder)
