"""Our storage as PyIceberg wants to see one: files to read, and nothing to write.

From partitions.py, and from the query process, the pipeline and `dolake verify`: PyIceberg takes a second to load.
"""

from __future__ import annotations

import io

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

from dolake.storage.base import Storage


class StorageIO(FileIO):
    """Reads through our storage, which refuses what lies outside the warehouse."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage

    def new_input(self, location: str) -> InputFile:
        return _StoredInput(location, self._storage)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError(f"{location} is for reading")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError(f"{location} is for reading")


class _StoredInput(InputFile):
    def __init__(self, location: str, storage: Storage) -> None:
        super().__init__(location)
        self._storage = storage

    def __len__(self) -> int:
        return self._storage.size(self.location)

    def exists(self) -> bool:
        return self._storage.exists(self.location)

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._storage.read(self.location))
