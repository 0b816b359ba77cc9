"""Prints as JSON the type, shape and sum of each tensor that the safetensors package reads in a file."""
import json
import sys

import numpy
from safetensors import safe_open

with safe_open(sys.argv[1], framework="numpy") as file:
    tensors = {}
    for name in file.keys():
        tensor = file.get_tensor(name)
        tensors[name] = [str(tensor.dtype), list(tensor.shape), float(tensor.sum(dtype=numpy.float64))]
print(json.dumps(tensors))
