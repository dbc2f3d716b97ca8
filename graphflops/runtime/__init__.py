"""What runs on a machine, to hold predictions against: the only part that imports triton, and torch beside `exporters.live`."""
