"""A trained model in formats of others: ONNX. The folder with our own is written by `tasks/models`."""
