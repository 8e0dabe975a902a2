"""A trained model outside Holdfast: the files that stand alone, ONNX, predictions of many rows."""
