"""ONNX spellings of the shared formulas, one file per family: `onnx.Conv`, `com.microsoft.Attention`, `ai.onnx.ml.Scaler`.

A rule is registered under the operator's newest meaning; a version of the operator that means something else has its own
key, the number at which that meaning came into force behind the name: `onnx.Softmax` and `onnx.Softmax.1`.
"""
