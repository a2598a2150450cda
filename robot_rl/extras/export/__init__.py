"""Policies as ONNX files."""
