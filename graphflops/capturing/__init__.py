"""Programs of installed model libraries by name: transformers, timm and torchvision, without weights and without network."""
