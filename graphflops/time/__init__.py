"""Time of a program on a device, predicted kernel by kernel."""
