"""ONNX spellings of the shared formulas, one file per family: `onnx.Conv`, `com.microsoft.Attention`, `ai.onnx.ml.Scaler`.

A rule is registered under the operator's newest meaning. A version of the operator that means something else has its own
key, the name followed by the version in which that meaning came into force: `onnx.Softmax` and `onnx.Softmax.1`.
"""
