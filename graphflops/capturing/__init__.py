"""Programs of models that installed libraries have by name (transformers, timm, torchvision), without weights or network."""
