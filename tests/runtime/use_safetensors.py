"""Reads FOLDER/ours.safetensors with the format's own library, prints what it found, and writes it to FOLDER/theirs.safetensors."""

import json
import sys

import ml_dtypes  # gives numpy bfloat16
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

folder = sys.argv[1]
ours = folder + "/ours.safetensors"
tensors = load_file(ours)
with safe_open(ours, framework="np") as file:
    metadata = {key: value for key, value in file.metadata().items() if not key.startswith("dtrun.")}
found = {name: [str(tensor.dtype), list(tensor.shape), tensor.tobytes().hex()] for name, tensor in tensors.items()}
print(json.dumps({"tensors": found, "metadata": metadata}))
save_file(tensors, folder + "/theirs.safetensors", {"format": "np"})
