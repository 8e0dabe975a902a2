"""The classifier as a file that stands alone: what `holdfast export` copies beside the weights.

Invariant: the modules here import torch, safetensors, tokenizers, Python's own library and each other, and nothing else
of Holdfast. Training uses the very same network, so nothing of it is written twice.
"""
