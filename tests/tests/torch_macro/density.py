"""The Python side of density.rs: MODEL_FOLDER FOLDER.

Loads the weights that the Rust model saved, strictly, and writes what it computes with them; then
writes weights of its own and what it computes with those. Reads and writes safetensors by hand, as
their specification says: the length of a JSON header, the header, the bytes.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch


def load(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", entry
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], dtype="<f4").reshape(entry["shape"]).copy()
        tensors[name] = torch.from_numpy(values)
    return tensors


def save(path, tensors):
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        part = tensor.detach().contiguous().numpy().astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(part)],
        }
        parts.append(part)
        end += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def main():
    sys.path.insert(0, sys.argv[1])
    from model import Codec

    folder = Path(sys.argv[2])
    pictures = load(folder / "pictures.safetensors")["pictures"]

    def outputs(codec):
        with torch.no_grad():
            restored, likelihood = codec(pictures)
        return {"restored": restored, "likelihood": likelihood}

    torch.set_num_threads(1)
    torch.manual_seed(3)
    codec = Codec().eval()
    codec.load_state_dict(load(folder / "rust.safetensors"), strict=True)
    save(folder / "python_with_rust_weights.safetensors", outputs(codec))

    codec = Codec().eval()
    with torch.no_grad():
        for parameter in codec.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    save(folder / "python.safetensors", codec.state_dict())
    save(folder / "python_with_own_weights.safetensors", outputs(codec))


if __name__ == "__main__":
    main()
