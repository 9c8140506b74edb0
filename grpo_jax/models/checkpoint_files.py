"""Safetensors files of a Transformers folder, one or many, checked before they are read."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class SafetensorsFolder:
    """The tensors of a folder's safetensors files, read in parts."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._files = _files_of_tensors(folder)
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        for file in sorted(set(self._files.values())):
            for name, entry in read_header(folder / file).items():
                if self._files.setdefault(name, file) != file:
                    raise ValueError(
                        f"tensor {name} is in {folder / file}, but the index says {self._files[name]}"
                    )
                self.shapes[name] = tuple(entry["shape"])

    def file_of(self, name: str) -> str:
        return str(self._folder / self._files[name]) if name in self._files else str(self._folder)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        # Opened for every read: a map kept open would keep every page it has touched in memory.
        with safe_open(self.file_of(name), framework="np") as file:
            return file.get_slice(name)[index]


def _files_of_tensors(folder: Path) -> dict[str, str]:
    """Tensor to file, from the index if there is one, else from the headers."""
    if (folder / INDEX).exists():
        files = json.loads((folder / INDEX).read_text())["weight_map"]
        for name, file in files.items():
            if not (folder / file).exists():
                raise ValueError(f"{folder / file} does not exist; {INDEX} says it holds tensor {name}")
        return dict(files)
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return {name: file.name for file in found for name in read_header(file)}
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        raise ValueError(
            f"{folder} holds {pickles[0]} but no safetensors; pickle files can run code when opened, so they"
            " are refused. Transformers' save_pretrained converts them"
        )
    raise ValueError(f"{folder} holds no safetensors file")


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Name to dtype, shape and data_offsets. A file that ends early raises with the first tensor cut."""
    size = file.stat().st_size
    try:
        with open(file, "rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
    except (struct.error, ValueError, MemoryError):
        raise ValueError(f"{file} is not a safetensors file, or its header is cut short") from None
    header.pop("__metadata__", None)
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if 8 + length + entry["data_offsets"][1] > size:
            raise ValueError(
                f"tensor {name} in {file} is truncated: the file has {size} bytes and the tensor ends at byte"
                f" {8 + length + entry['data_offsets'][1]}"
            )
    try:
        with safe_open(file, framework="np"):
            return header
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from None
