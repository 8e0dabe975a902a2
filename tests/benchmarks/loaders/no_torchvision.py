"""Stands in for torchvision, which Streaming imports for its image data sets and needs for nothing that is read here.

A build of torchvision loads beside one build of torch alone, and which of them pip finds differs between machines.
Imported before `streaming`, it puts empty modules in torchvision's place.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = {
    "torchvision": (),
    "torchvision.datasets": ("VisionDataset",),
    "torchvision.transforms": (),
    "torchvision.transforms.functional": ("to_tensor",),
}

for module_name, names in NAMES.items():
    module = ModuleType(module_name)
    module.__spec__ = ModuleSpec(module_name, loader=None)  # other libraries ask whether there is a torchvision
    for name in names:
        setattr(module, name, object)
    sys.modules[module_name] = module
