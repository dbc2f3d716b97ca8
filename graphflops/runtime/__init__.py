"""What runs on a machine, to hold predictions against: the only importer of triton, and of torch beside `exporters.live`."""
