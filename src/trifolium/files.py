"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`, with its suffix, to write to; it takes the place of `path` when the block ends well.

    Until then, and if the block fails, whatever was at `path` stays there. Raises OSError when the disk is full or the
    folder can't be written.
    """
    handle, name = mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
