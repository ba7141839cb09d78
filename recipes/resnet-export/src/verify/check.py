"""Checks an ONNX file with the onnx package and runs it with ONNX Runtime. usage: MODEL IMAGES LOGITS THREADS SHAPE BATCH..."""
import json, sys

model, images, logits, threads = sys.argv[1:5]
shape = [int(size) for size in sys.argv[5].split(",")]


def fail(stage, error):
    print(json.dumps({"stage": stage, "error": f"{type(error).__name__}: {error}"}))
    sys.exit(1)


try:
    import numpy, onnx, onnxruntime
except ImportError as error:
    fail("import numpy, onnx and onnxruntime", error)
try:
    onnx.checker.check_model(model, full_check=True)
except Exception as error:
    fail("pass onnx.checker", error)
try:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    values = numpy.fromfile(images, dtype="<f4").reshape(shape)
    with open(logits, "wb") as file:
        for batch in map(int, sys.argv[6:]):
            for start in range(0, len(values), batch):
                part = session.run(None, {name: values[start:start + batch]})[0]
                file.write(part.astype("<f4").tobytes())
except Exception as error:
    fail("run in onnxruntime", error)
print(json.dumps({"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}))
