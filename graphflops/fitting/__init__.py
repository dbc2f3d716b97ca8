"""Whether a program fits on a device, and what would make it fit."""
