"""Reads a checkpoint by the format's description alone, and prints {file: {"metadata", "tensors"}} as JSON.

Knows nothing of Paceline. Fails where a file is not as https://github.com/huggingface/safetensors says.
"""
import json
import math
import pathlib
import struct
import sys

CODES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "?"}


def values(dtype, data):
    if dtype == "BF16":  # the upper half of a float
        halves = struct.unpack("<%dH" % (len(data) // 2), data)
        return list(struct.unpack("<%df" % len(halves), struct.pack("<%dI" % len(halves), *(h << 16 for h in halves))))
    return list(struct.unpack("<%d%s" % (len(data) // struct.calcsize(CODES[dtype]), CODES[dtype]), data))


def read(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert raw[8:9] == b"{", "the header begins with a brace"
    header = json.loads(raw[8 : 8 + length].decode("utf-8"))
    data = raw[8 + length :]
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(value, str) for value in metadata.values()), metadata
    end = 0
    tensors = {}
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(tensor) == {"dtype", "shape", "data_offsets"}, tensor
        begin, following = tensor["data_offsets"]
        assert begin == end, "no gap and no overlap before " + name
        end = following
        got = values(tensor["dtype"], data[begin:end])
        assert len(got) == math.prod(tensor["shape"]), name
        tensors[name] = {"dtype": tensor["dtype"], "shape": tensor["shape"], "values": got}
    assert end == len(data), "nothing follows the last tensor"
    return {"metadata": metadata, "tensors": tensors}


folder = pathlib.Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
files = {file["name"]: file["bytes"] for file in manifest["body"]["files"]}
assert set(files) | {"manifest.json"} == {path.name for path in folder.iterdir()}, files
assert all((folder / name).stat().st_size == size for name, size in files.items()), files
print(json.dumps({name: read(folder / name) for name in files}))
