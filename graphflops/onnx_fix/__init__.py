"""Fixes what an audit finds in an ONNX file, and proves it before anything is written. See `fix.fixed`."""
