"""Usage: run_onnx.py MODEL IMAGES CxHxW OUTPUT

Checks an ONNX model with ONNX's own checker at its strictest. Runs the model in ONNX Runtime on raw float32 images
(images, channels, height, width), and writes the raw output. Prints as JSON the versions, the operators, and the names
and shapes of the model's inputs and outputs."""
import json
import sys

import numpy
import onnx
import onnxruntime

model_file, image_file, shape, output_file = sys.argv[1:]
onnx.checker.check_model(model_file, full_check=True)
model = onnx.load(model_file)


def ends(values):
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values
    }


images = numpy.fromfile(image_file, dtype=numpy.float32).reshape([-1] + [int(size) for size in shape.split("x")])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model_file, options, providers=["CPUExecutionProvider"])
outputs = [session.run(None, {"input": images[at : at + 500]})[0] for at in range(0, len(images), 500)]
numpy.concatenate(outputs).astype(numpy.float32).tofile(output_file)
print(
    json.dumps(
        {
            "ir": model.ir_version,
            "opset": model.opset_import[0].version,
            "producer": model.producer_name,
            "inputs": ends(model.graph.input),
            "outputs": ends(model.graph.output),
            "ops": [node.op_type for node in model.graph.node],
        }
    )
)
