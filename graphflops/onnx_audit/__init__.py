"""Audits ONNX files: one function for each check, under a stable code. See `audit.audit`."""
